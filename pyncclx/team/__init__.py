"""The state of a communicator: options, lease, windows, and order of launches.

* `base`: `Base`, the type that packages below `communicator` use for communicators; `options`: options, as attributes.
* `state`: the state that all objects with one MPI handle share; `attachment`: the state that higher packages add to it.
* `team`: the device side, made at the first use from `members` (the ranks' properties). Its parts: `windows`,
  `plans`, `launch_order`, `tracks` (of persistent collectives), and `kept` (scratch memory).
* `dropped`: the Teams of dropped communicators, for the next one of the same ranks; `ending`: the end of a Team.
* `background`: a thread launches calls for which the ranks have to meet; `handlers`: MPI's error handlers.
* `compare`: the comparison of calls between ranks under PYNCCLX_CHECK=1.
* `streams`: the streams that a call waits for, and the stream on which the program continues.
"""
