"""The state of a communicator: options, lease, windows, and order of launches.

* `base`: `Base`, the type of a communicator in packages below `communicator`; `options`: its options as attributes.
* `state`: what all objects with one handle share; `attachment`: the state that packages above add to it.
* `team`: the device side, made at the first use from `members` (the ranks' properties). Its parts: `windows`,
  `plans`, `launch_order`, and `kept`, which has the scratch memory.
* `compare`: the comparison of calls between ranks under PYNCCLX_CHECK=1.
* `streams`: the streams that a call waits for, and the one on which its user continues.
"""
