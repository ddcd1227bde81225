"""What profilers leave of a run: traces, snapshots of memory, messages of full memory. Nothing of them is executed.

* `kineto`: traces of PyTorch's profiler and of `train`, rank by rank, read as they stream
* `nsight`: exports of Nsight Systems to sqlite
* `figures`: what the time of a rank went to
* `read`: files of any of these, told apart by their content, and the folder that `train` leaves
* `memory`: snapshots of PyTorch's allocator, whose pickles are read as data, and messages of full memory
"""
