"""What a communicator carries: options, and on the device its lease, its windows, and the order of its launches.

* `base`: `Base`, the type of a communicator in rooms below `communicator`; `options`: its options as attributes.
* `state`: what all objects with one handle share, and `Attachment`, by which rooms above keep something with it.
* `team`: the device side, made at the first use from `members` (the ranks' properties). Its parts: `windows` and
  `registration`, `scratch`, `plans`, `launch_order`, `error_record` (with `kernel_errors`, `device_errors` and
  `operations`).
* `disagreement`: what kernels have on record of calls that differ among ranks.
* `compare`: the comparison of calls among the ranks under PYNCCLX_CHECK=1.
* `streams`: which streams a call is ordered behind, and which one its user continues on.
"""
