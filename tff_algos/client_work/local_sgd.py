from tff_algos.hyper_parameters import *
