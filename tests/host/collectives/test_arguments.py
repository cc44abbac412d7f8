"""The arguments of collectives are where their kernels read them."""

import pytest

from pyncclx.collectives.alltoallv_segments import SegmentsArgs
from pyncclx.collectives.arguments import BlocksArgs
from pyncclx.collectives.scan import ScanArgs
from pyncclx.device.team import DeviceTeamStruct
from pyncclx.memory.cstruct import offsets_of, sizeof
from pyncclx.memory.parameters import TEAM_NBYTES, AlltoallvArgs, MoveArgs, ReduceArgs, TransformedRows
from support.cxx_layout import check, needs_compiler


@needs_compiler
@pytest.mark.parametrize(
    ("source", "name", "struct"),
    [
        ("protocol/layout.cuh", "ReduceArgs", ReduceArgs),
        ("protocol/layout.cuh", "MoveArgs", MoveArgs),
        ("exchange/blocks.cuh", "BlocksArgs", BlocksArgs),
        ("collectives/scan.cu", "ScanArgs", ScanArgs),
    ],
)
def test_fields(source, name, struct, tmp_path):
    check(tmp_path, [source], {name: (struct, TEAM_NBYTES)})


@needs_compiler
def test_fields_of_other_names(tmp_path):
    rows = TEAM_NBYTES + sizeof(AlltoallvArgs)
    segments, transformed = offsets_of(SegmentsArgs), offsets_of(TransformedRows)
    constants = {
        "offsetof(AlltoallvArgs, fixed)": TEAM_NBYTES + offsets_of(AlltoallvArgs)["fixed_send_counts"],
        "sizeof(AlltoallvArgs)": rows,
        **{f"offsetof(SegmentsArgs, {field})": rows + offset for field, offset in segments.items()},
        "sizeof(SegmentsArgs)": rows + sizeof(SegmentsArgs),
        "offsetof(TransformedArgs, rows.columns)": TEAM_NBYTES + transformed["columns"],
        "offsetof(TransformedArgs, rows.transform)": TEAM_NBYTES + transformed["arrays"],
        "sizeof(TransformedArgs)": TEAM_NBYTES + sizeof(TransformedRows),
        "sizeof(TransformedRows)": sizeof(TransformedRows),
        "offsetof(DeviceTeam, state)": TEAM_NBYTES + offsets_of(DeviceTeamStruct)["state"],
    }
    sources = ["collectives/alltoallv_segments.cu", "collectives/transformed.cu", "device/team.cuh"]
    check(tmp_path, sources, {}, constants)
