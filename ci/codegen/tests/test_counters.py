"""Counters, on code that was taken from compilers' output and cut short."""

from __future__ import annotations

import struct

import pytest

from ci.codegen import amdgcn, ptx, sass
from ci.codegen.counts import Counts

PTX_GOOD = """
.version 8.7
.target sm_90a
.visible .entry backward(
	.param .u64 .ptr .global .align 1 backward_param_0
)
.reqntid 32
{
	.reg .pred 	%p<2>;
$L__BB0_1:                              // fence.acq_rel.gpu; atom.global.cas.b32: a comment
	ld.param.b64 	%rd3, [backward_param_0];
	// begin inline asm
	mov.u32 %r1, 0x0;
	@%p1 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
	// end inline asm
	@!%p1 ld.global.L1::evict_last.v2.b64 { %rd7, %rd8 }, [ %rd1 + 0 ];
	ld.global.v2.b32 { %r1, %r2 }, [ %rd1 + 0 ];
	ld.shared.v4.b32 {%r1, %r2, %r3, %r4}, [%r9];
	@%p1 atom.global.gpu.relaxed.add.v4.f32 {%r1, %r2, %r3, %r4}, [ %rd2 + 0 ], {%r5, %r6, %r7, %r8};
	@%p1 atom.global.gpu.relaxed.add.noftz.v8.bf16 {%rs1}, [ %rd2 + 0 ], {%rs2};
	red.relaxed.gpu.global.add.noftz.v4.f16x2 [ %rd2 + 0 ], {%r5, %r6, %r7, %r8};
	@%p1 atom.global.gpu.relaxed.add.noftz.f16x2 %r1, [ %rd2 + 0 ], %r2;
	@%p1 atom.global.gpu.relaxed.add.f64 %rd1, [ %rd2 + 0 ], %rd2;
	@%p1 atom.global.gpu.relaxed.add.u32 %r1, [ %rd2 + 0 ], %r2;
	atom.shared.add.u32 %r1, [%r2], %r3;
	@%p1 st.global.v4.b32 [ %rd1 + 0 ], { %r1, %r2, %r3, %r4 };
	@%p2 bra 	$L__BB0_1;
	ret;
}
"""


def test_ptx():
    assert ptx.counts(PTX_GOOD) == Counts(
        instructions=16,
        loads_16_byte=2,
        stores_16_byte=1,
        atomics={"f32x4": 1, "bf16x8": 1, "f16x8": 1, "f16x2": 1, "f64": 1, "u32": 1},
    )
    assert ptx.counts(PTX_GOOD).vector_reductions == 4


@pytest.mark.parametrize(
    ("line", "cas", "fences"),
    [
        ("atom.relaxed.gpu.global.cas.b32 \t%r1, [%rd1], %r2, %r3;", 1, 0),
        # The assembler makes a loop of it: no GPU has it.
        ("@%p1 atom.global.gpu.relaxed.add.noftz.f16 %rs1, [ %rd2 + 0 ], %rs2;", 1, 0),
        ("@%p1 atom.global.gpu.relaxed.add.noftz.bf16 %rs1, [ %rd2 + 0 ], %rs2;", 1, 0),
        ("fence.acq_rel.gpu;", 0, 1),
        ("membar.gl;", 0, 1),
        ("@%p1 atom.global.gpu.acq_rel.add.f32 %r1, [ %rd2 + 0 ], %r2;", 0, 1),
        ("atom.acquire.gpu.global.cas.b32 %r1, [%rd1], %r2, %r3;", 1, 1),
        ("redux.sync.max.s32 %r1, %r2, %r3;", 0, 0),
        ("$L__membar:", 0, 0),
    ],
)
def test_ptx_loops_and_fences(line: str, cas: int, fences: int):
    found = ptx.counts(f"\t{line}\n")
    assert (found.cas_loops, found.fences) == (cas, fences)


SASS_GOOD = """
	.headerflags	@"EF_CUDA_64BIT_ADDRESS EF_CUDA_SM90"
.text.backward:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P0 LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0020*/                   LDG.E.ENL2.256 R4, R8, desc[UR4][R2.64] ;
        /*0030*/             @!UP0 LDG.E.64 R4, desc[UR4][R2.64] ;
        /*0040*/                   LDS.128 R4, [R2] ;
        /*0050*/               @P1 STG.E.128 desc[UR4][R2.64], R4 ;
        /*0060*/                   REDG.E.ADD.F32x4.FTZ.RN.STRONG.GPU desc[UR4][R2.64], R4 ;
        /*0070*/                   REDG.E.ADD.BF16x8.RN.STRONG.GPU desc[UR4][R2.64], R4 ;
        /*0080*/                   RED.E.ADD.F16x2.RN.STRONG.GPU [R2.64], R5 ;
        /*0090*/                   RED.E.ADD.F64.RN.STRONG.GPU [R2.64], R5 ;
        /*00a0*/                   ATOMG.E.ADD.STRONG.GPU PT, R3, [R4.64], R5 ;
        /*00b0*/                   REDUX.MAX.S32 UR4, R2 ;
        /*00c0*/                   EXIT ;
.L_x_1:
        /*00d0*/                   BRA `(.L_x_1);
        /*00e0*/                   NOP;
        /*00f0*/                   NOP;
"""


def test_sass():
    assert sass.counts(SASS_GOOD) == Counts(
        instructions=14,
        loads_16_byte=2,
        stores_16_byte=1,
        atomics={"f32x4": 1, "bf16x8": 1, "f16x2": 1, "f64": 1, "u32": 1},
    )


@pytest.mark.parametrize(
    ("line", "cas", "fences"),
    [
        ("ATOMG.E.CAS.STRONG.GPU PT, R7, [R2], R6, R7 ;", 1, 0),
        ("ATOM.E.CAS.64.STRONG.GPU PT, R7, [R2], R6, R7 ;", 1, 0),
        ("MEMBAR.ALL.GPU ;", 0, 1),
        ("MEMBAR.SC.GPU ;", 0, 1),
        ("CCTL.IVALL ;", 0, 1),
        ("CCTL.PF2 [R2] ;", 0, 0),
        ("ERRBAR;", 0, 0),
        ("BAR.SYNC.DEFER_BLOCKING 0x0 ;", 0, 0),
    ],
)
def test_sass_loops_and_fences(line: str, cas: int, fences: int):
    found = sass.counts(f"        /*0000*/                   {line}\n")
    assert (found.cas_loops, found.fences, found.instructions) == (cas, fences, 1)


def cubin(sections: dict[str, bytes]) -> bytes:
    """An ELF file with these sections."""
    names = b"\0" + b"\0".join(name.encode() for name in sections) + b"\0.names\0"
    body, table = b"", struct.pack("<IIQQQQIIQQ", *[0] * 10)
    for name, content in {**sections, ".names": names}.items():
        at = names.index(b"\0" + name.encode() + b"\0") + 1
        table += struct.pack("<IIQQQQIIQQ", at, 1, 0, 0, 64 + len(body), len(content), 0, 0, 1, 0)
        body += content
    head = b"\x7fELF\x02\x01\x01".ljust(40, b"\0") + struct.pack("<Q", 64 + len(body)) + b"\0" * 4
    head += struct.pack("<HHHHHH", 64, 0, 0, 64, len(sections) + 2, len(sections) + 1)
    return head + body + table


def test_code_of_a_cubin():
    assert sass.instructions(cubin({".nv.info": b"abc", ".text.backward": b"0" * 32, ".strtab": b"d"})) == b"0" * 32
    with pytest.raises(ValueError, match=r"no section \.text"):
        sass.instructions(cubin({".nv.info": b"abc"}))
    with pytest.raises(ValueError, match="64-bit ELF"):
        sass.instructions(b"not a cubin")


AMDGCN = """
	.amdgcn_target "amdgcn-amd-amdhsa--gfx942"
backward:                               ; @backward
; %bb.0:
	s_load_dwordx4 s[4:7], s[0:1], 0x0
	global_load_dwordx4 v[2:5], v[0:1], off ; buffer_inv sc1: a comment
	buffer_load_dwordx4 v[2:5], v1, s[4:7], 0 offen
	global_load_dwordx2 v[2:3], v[0:1], off
	ds_read_b128 v[2:5], v1
	s_waitcnt vmcnt(0)
	{line}
	global_store_dwordx4 v[0:1], v[2:5], off
	s_nop 0
	s_endpgm
	.section	.rodata,"a",@progbits
amdhsa.kernels:
  - .args:
    .private_segment_fixed_size: {scratch}
    .sgpr_count:     84
    .sgpr_spill_count: {scalar_spills}
    .vgpr_count:     152
    .vgpr_spill_count: {spills}
"""


def assembly(line: str, *, scratch: int = 0, spills: int = 0, scalar_spills: int = 0) -> str:
    return (
        AMDGCN.replace("{line}", line)
        .replace("{scratch}", str(scratch))
        .replace("{spills}", str(spills))
        .replace("{scalar_spills}", str(scalar_spills))
    )


@pytest.mark.parametrize(
    ("line", "kinds"),
    [
        ("global_atomic_add_f32 v[0:1], v2, off", {"f32": 1}),
        ("buffer_atomic_add_f32 v2, v0, s[0:3], 0 offen", {"f32": 1}),
        ("global_atomic_pk_add_f16 v[0:1], v2, off", {"f16x2": 1}),
        ("global_atomic_pk_add_bf16 v[0:1], v2, off", {"bf16x2": 1}),
        ("global_atomic_add_f64 v[0:1], v[2:3], off", {"f64": 1}),
        ("global_atomic_add v1, v0, v2, s[0:1] sc0", {"u32": 1}),
        ("global_atomic_add_x2 v[0:1], v[2:3], off", {"u64": 1}),
        ("global_atomic_smax v[0:1], v2, off", {"smax-u32": 1}),
    ],
)
def test_amdgcn(line: str, kinds: dict[str, int]):
    expected = Counts(instructions=9, loads_16_byte=2, stores_16_byte=1, atomics=kinds)
    assert amdgcn.counts(assembly(line)) == expected
    assert expected.vector_reductions == sum("x" in kind.removeprefix("smax") for kind in kinds)


@pytest.mark.parametrize(
    ("line", "cas", "fences"),
    [
        ("global_atomic_cmpswap v36, v[34:35], v[36:37], off sc0", 1, 0),
        ("buffer_atomic_cmpswap_x2 v[0:3], v4, s[0:3], 0 offen sc0", 1, 0),
        ("buffer_wbl2 sc1", 0, 1),
        ("buffer_inv sc1", 0, 1),
        ("s_waitcnt vmcnt(0) lgkmcnt(0)", 0, 0),
        ("s_barrier", 0, 0),
    ],
)
def test_amdgcn_loops_and_fences(line: str, cas: int, fences: int):
    found = amdgcn.counts(assembly(line))
    assert (found.cas_loops, found.fences, found.atomics) == (cas, fences, {})


def test_amdgcn_resources():
    found = amdgcn.resources(assembly("s_nop 0"))
    assert (found.vector_registers, found.scalar_registers, found.spills) == (152, 84, 0)
    assert amdgcn.resources(assembly("s_nop 0", spills=3)).spills == 3
    assert amdgcn.resources(assembly("s_nop 0", scratch=18, spills=3)).spills == 5
    # Lanes of vector registers are no memory.
    assert amdgcn.resources(assembly("s_nop 0", scalar_spills=7)).spills == 0
    with pytest.raises(ValueError, match="vgpr_count is there 0 times"):
        amdgcn.resources("backward:\n\ts_endpgm\n    .vgpr_spill_count: 0\n    .private_segment_fixed_size: 0\n")
