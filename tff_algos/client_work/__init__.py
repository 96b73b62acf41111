from tff_algos.client_work import tree_math  # `tff_algos.tree_math` is found here.

__all__ = ["tree_math"]
