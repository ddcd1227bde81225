"""What a rank holds.

* `buckets`: parameters in flat buffers, and what ZeRO cuts of them
* `pieces`: pieces of training state, their overlaps, and which ones a rank has and writes
* `store`: the buffers
* `slots`: fp32 weights and moments of what a rank updates, those in host memory too, and AdamW, in 8 bits too, and SGD
* `blocks`: moments in 8 bits
* `muon`: Muon, on matrices whole, and which rank orthogonalises which of them
* `optimizer`: the update of a step
* `recipe`: how weights are updated, and fp16 loss scaling
"""
