"""A user's module that ends the program where it is imported."""

import sys

sys.exit("no GPU here")
