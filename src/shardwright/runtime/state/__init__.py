"""What a rank holds.

* `buckets`: parameters in flat buffers
* `store`: the buffers
* `sharding`: what ZeRO cuts
* `optimizer`: AdamW and SGD on flat buffers
* `offload`: state in host memory
* `loss_scale`: fp16 loss scaling
* `recipe`: how weights are updated
"""
