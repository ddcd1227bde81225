"""What a rank holds.

* `buckets`: parameters in flat buffers, and what ZeRO cuts of them
* `pieces`: pieces of training state, their overlaps, and which ones a rank has and writes
* `store`: the buffers
* `slots`: fp32 weights and moments of what a rank updates, and which of them are in host memory
* `blocks`: moments in 8 bits
* `methods`: AdamW, in 8 bits too, and SGD
* `matrices`: which rank orthogonalises which matrix
* `muon`: Muon, on matrices whole
* `optimizer`: the update of a step
* `loss_scale`: fp16 loss scaling
* `recipe`: how weights are updated
"""
