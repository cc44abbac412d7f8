"""The public names of `pyncclx`. Importing this module imports `mpi4py.MPI`."""

# ruff: noqa: PLC0414
import mpi4py
from mpi4py import MPI

from ..device.team import DeviceTeam as DeviceTeam
from ..errors import Aborted as Aborted
from ..errors import CapacityExceeded as CapacityExceeded
from ..errors import CollectiveMismatch as CollectiveMismatch
from ..errors import NotSupported as NotSupported
from ..errors import PeerTimeout as PeerTimeout
from ..errors import RankFailed as RankFailed
from ..errors import Revoked as Revoked
from ..events import Event as Event
from ..events import on_event as on_event
from ..messages.host.persistent import HostReceivePrequest
from ..messages.matched import Message
from ..operators.ops import AVG as AVG
from ..operators.row_transform import Transform as Transform
from ..operators.user_op import Op as Op
from ..recording.dump import dump as dump
from ..requests.host_receive import HostReceiveRequest
from ..requests.partitioned import PartitionedRequest as PartitionedRequest
from ..requests.persistent import Prequest as Prequest
from ..requests.request import Request as Request
from ..staging import requests
from ..system.paths import include_path as include_path
from ..team.handlers import follow_handlers, note_handler, refuse_in_children
from ..team.windows import Registration as Registration
from ..tokens.rows import Handle as Handle
from ..tokens.rows import Rows as Rows
from ..tokens.shuffle import TokenShuffle as TokenShuffle
from ..windows.win import Win as Win
from .adopting import Communicator as Communicator
from .communicator import Cartcomm as Cartcomm
from .communicator import Comm as Comm
from .communicator import Distgraphcomm as Distgraphcomm
from .communicator import Graphcomm as Graphcomm
from .communicator import Intercomm as Intercomm
from .communicator import Intracomm as Intracomm
from .communicator import Topocomm as Topocomm
from .faults import arm

_REQUESTS = Request, Prequest, PartitionedRequest
_OF_HOST_ARRAYS = HostReceiveRequest, HostReceivePrequest, requests.Request, requests.Prequest, Message
_CALLED = Comm, Intracomm, Topocomm, Cartcomm, Intercomm, Win, TokenShuffle, DeviceTeam, *_REQUESTS
arm(_CALLED)
refuse_in_children((*_CALLED, *_OF_HOST_ARRAYS, Communicator, Registration))
follow_handlers((*_CALLED, *_OF_HOST_ARRAYS, Registration))
if mpi4py.rc.errors != "exception":
    note_handler(MPI.ERRORS_ARE_FATAL)
