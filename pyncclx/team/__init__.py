"""The state of a communicator: options, lease, windows, and order of launches.

* `base`: `Base`, the type of a communicator in packages below `communicator`; `options`: its options as attributes.
* `state`: what all objects with one handle share, and `Attachment`, the state that packages above add to it.
* `team`: the device side, made at the first use from `members` (the ranks' properties). Its parts: `windows` and
  `registration`, `scratch`, `plans`, `launch_order`, `error_record` (with `kernel_errors`, `device_errors` and
  `operations`).
* `disagreement`: what kernels have recorded about calls that differ between ranks.
* `compare`: the comparison of calls between ranks under PYNCCLX_CHECK=1.
* `streams`: the streams that a call waits for, and the one on which its user continues.
"""
