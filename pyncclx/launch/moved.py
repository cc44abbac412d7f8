"""Use cached launches for equal arrays at other addresses.

Programs that make new arrays in each step repeat their calls with such arrays.
"""

from __future__ import annotations

import struct
from typing import Any

from mpi4py import MPI

from ..arrays.pointers import reaches
from ..team.plans import CachedLaunch, MovableLaunch
from ..team.team import Team
from .call import Call
from .keys import MovableKey

# The addresses of the data to send and of the memory to receive into.
_ADDRESSES = struct.Struct("=QQ")


def find(team: Team, key: MovableKey) -> CachedLaunch | None:
    """Make a launch for these arrays from a cached one for equal arrays elsewhere.

    Cache the new launch, too. Return None if no such launch is cached.
    """
    known = team.movable_launches.get(key.elsewhere)
    if known is None:
        return None
    addresses = key.addresses
    for number, nbytes in known.reaches:
        if not reaches(key.arrays[number], team.device, addresses[number], nbytes):
            return None
    at = [addresses[number] + offset if number >= 0 else 0 for number, offset in (*known.buffers, *known.data)]
    places, data = team.places(at[0], at[1]), _ADDRESSES.pack(at[2], at[3])
    plan, _, producers, of_current, around, record = known.launch
    parameters = known.team + places + known.called + data + known.arguments
    found = CachedLaunch(plan, parameters, producers, of_current, around, record)
    team.cached_launches[key.exact] = found
    return found


def keep(team: Team, key: MovableKey, call: Call, launch: CachedLaunch) -> None:
    """Cache a launch under its key, and for equal arrays elsewhere.

    For equal arrays elsewhere, it is cached only if all addresses in its arguments are at known places.
    """
    team.cached_launches[key.exact] = launch
    if not (call.moves and launch.around is None):
        return
    sent, received = _ADDRESSES.unpack_from(call.arguments)
    used = call.buffers[0], call.buffers[-1]
    try:
        buffers = [_within(key, each.owner, each.address) for each in used]
        data = [_within(key, each.owner, address) for each, address in zip(used, (sent, received), strict=True)]
    except LookupError:
        return
    reaching = {(number, each.reach) for (number, _), each in zip(buffers, used, strict=True) if each.reach}
    arguments = call.arguments[_ADDRESSES.size :]
    struct = team.struct_for(launch.plan.operation, launch.plan.early)
    team.movable_launches[key.elsewhere] = MovableLaunch(
        launch, struct, call.called, arguments, tuple(buffers), tuple(data), tuple(reaching)
    )


def _within(key: MovableKey, owner: Any, address: int) -> tuple[int, int]:
    """Return the number of the array `owner`, and the offset of an address in it.

    The number is -1 for address 0. Raises LookupError if the address is not in the array.
    """
    if address == 0:
        return -1, 0
    number = next((number for number, array in enumerate(key.arrays) if array is owner), -1)
    offset = address - key.addresses[number] if number >= 0 else -1
    if offset < 0 or (offset > owner.nbytes and type(owner) is not MPI.buffer):
        raise LookupError("the address is not in an array of the arguments")
    return number, offset
