"""What runs beside a training program: NVTX ranges, and the capture by nsys. Only the standard library is needed."""
