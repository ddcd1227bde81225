"""What profilers leave of a run: traces, snapshots of memory, messages of full memory. Nothing of them is executed.

* `intervals`: sets of times as arrays
* `chrome`: events of Chrome traces, read as they stream
* `kineto`: traces of PyTorch's profiler and of `train`, rank by rank
* `nsight`: exports of Nsight Systems to sqlite
* `kinds`: what kind of work a kernel is, by its name
* `figures`: what the time of a rank went to
* `snapshot`: snapshots of PyTorch's allocator, whose pickles are read as data
* `out_of_memory`: what a message of full memory says
* `run_folder`: the folder that `train` leaves
* `read`: files of any of these, told apart by their content
"""
