"""The kernels for NVIDIA GPUs: CUDA C in the .cu files beside this one, compiled by NVRTC through CuPy.

**Nothing here has run on a GPU yet**, and no time was measured on one. What was done instead (`tests/test_cuda.py`):

- every source is compiled by NVRTC to machine code for sm_70, sm_80 and sm_90, for every combination of element types;
- the same text is compiled by g++ and run on the CPU, the threads of a block as fibers, in forward, reversed and random
  order, and the numbers are compared with NumPy in float64 and with the kernels for the CPU; each launch checks the
  types of its arguments and that nothing is written outside of them;
- the Python code here is run as it is on that simulated device, with arrays that refuse what CuPy's refuse (they mix
  with none of NumPy's and turn into none by themselves), and every function it calls is looked up in CuPy;
- whole runs have their clients there, their arrays in messages between real MPI ranks (`tests/test_gpu_clients.py`).

So CuPy's own part (memory, streams, cuBLAS, the launch itself) is untested. Where a GPU is found, the tests of the
kernels run on it as well. Importing this package imports no CuPy; `device.cuda()` does.
"""
