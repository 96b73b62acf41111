from tff_algos.simulation import schedules  # `tff_algos.schedules` is found here.

__all__ = ["schedules"]
