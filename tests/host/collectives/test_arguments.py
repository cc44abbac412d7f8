"""The arguments of collectives are where their kernels read them."""

import pytest

from pyncclx.collectives.alltoallv_segments import SegmentsArgs
from pyncclx.collectives.blocks import BlocksArgs
from pyncclx.collectives.scan import ScanArgs
from pyncclx.collectives.transformed import TransformedArgs
from pyncclx.device.team import DeviceTeamStruct
from pyncclx.memory.cstruct import offsets_of, sizeof
from pyncclx.memory.parameters import TEAM_NBYTES, AlltoallvArgs, MoveArgs, ReduceArgs
from pyncclx.nodes.steps import TransformRowsArgs
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
    segments, transformed = offsets_of(SegmentsArgs), offsets_of(TransformedArgs)
    rows_made = offsets_of(TransformRowsArgs)
    constants = {
        "offsetof(AlltoallvArgs, fixed)": TEAM_NBYTES + offsets_of(AlltoallvArgs)["fixed_send_counts"],
        "sizeof(AlltoallvArgs)": rows,
        **{f"offsetof(SegmentsArgs, {field})": rows + offset for field, offset in segments.items()},
        "sizeof(SegmentsArgs)": rows + sizeof(SegmentsArgs),
        "offsetof(TransformedArgs, columns)": TEAM_NBYTES + transformed["columns"],
        "offsetof(TransformedArgs, transform)": TEAM_NBYTES + transformed["arrays"],
        "sizeof(TransformedArgs)": TEAM_NBYTES + sizeof(TransformedArgs),
        "offsetof(TransformRowsArgs, columns)": rows_made["columns"],
        "offsetof(TransformRowsArgs, transform)": rows_made["arrays"],
        "sizeof(TransformRowsArgs)": sizeof(TransformRowsArgs),
        "offsetof(DeviceTeam, state)": TEAM_NBYTES + offsets_of(DeviceTeamStruct)["state"],
    }
    sources = ["collectives/alltoallv_segments.cu", "collectives/transformed.cu", "collectives/transform_rows.cu"]
    sources.append("device/team.cuh")
    check(tmp_path, sources, {}, constants)
