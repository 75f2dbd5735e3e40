"""The commands of fabtests that are run, and those that are not."""

from __future__ import annotations

RUN = (
    "fi_av_xfer -e rdm",
    "fi_cq_data -e rdm -o senddata",
    "fi_cq_data -e rdm -o writedata",
    "fi_rdm",
    "fi_rdm -U",
    "fi_rdm_rma_event",
    "fi_rdm_rma_trigger",
    "fi_multi_mr -e rdm -V",
    "fi_rdm_tagged_peek",
    "fi_multi_ep -e rdm -v -A",
    "fi_multi_ep -e rdm -v -Q",
    "fi_multi_ep -e rdm -v -A -Q",
    "fi_multi_ep -e rdm -v --threading completion",
    "fi_recv_cancel -e rdm -V",
    "fi_unexpected_msg -e rdm -I 10 -v",
    "fi_inject_test -A inject -v",
    "fi_inject_test -N -A inject -v",
    "fi_inject_test -A inj_complete -v",
    "fi_inject_test -N -A inj_complete -v",
    "fi_flood -e rdm -v -T 1",
    "fi_flood -e rdm -v -T 1 -U",
    "fi_rma_bw -e rdm -o write -I 5",
    "fi_rma_bw -e rdm -o write -I 5 -U",
    "fi_rma_bw -e rdm -o read -I 5",
    "fi_rma_bw -e rdm -o read -I 5 -U",
    "fi_rma_bw -e rdm -o writedata -I 5",
    "fi_rma_bw -e rdm -o writedata -I 5 -U",
    "fi_rma_pingpong -e rdm -o writedata -I 5",
    "fi_rdm_atomic -I 5 -o all",
    "fi_rdm_atomic -I 5 -o all -U",
    "fi_rdm_atomic -I 5 -o all -v",
    "fi_rdm_atomic -I 5 -o all -U -v",
    "fi_rdm_cntr_pingpong -I 5",
    "fi_multi_recv -e rdm -I 5",
    "fi_rdm_pingpong -I 5",
    "fi_rdm_pingpong -I 5 -U",
    "fi_rdm_pingpong -I 5 -v",
    "fi_rdm_pingpong -I 5 -v -U",
    "fi_rdm_pingpong -I 5 -c sread",
    "fi_rdm_pingpong -I 5 -c fd",
    "fi_rdm_tagged_pingpong -I 5",
    "fi_rdm_tagged_pingpong -I 5 -U",
    "fi_rdm_tagged_pingpong -I 5 -v",
    "fi_rdm_tagged_pingpong -I 5 -v -U",
    "fi_rdm_tagged_bw -I 5",
    "fi_rdm_tagged_bw -I 5 -U",
    "fi_rdm_tagged_bw -I 5 -v",
    "fi_rdm_bw -I 5",
    "fi_rdm_bw_mt -n 8",
)
"""Each with the options `-p pyfab -E=PORT`; the client has the host as well."""

LEFT_OUT = {
    "fi_shared_ctx": "contexts that endpoints share (fi_stx_context, fi_srx_context) are not offered",
}
"""With the reason: what they need is not offered, and fi_getinfo() says so."""

BY_ADDRESS = ("fi_rdm", "fi_scalable_ep", "fi_rdm_shared_av")
"""Those that take the server's address from fi_getinfo(): over the tcp link of those that are there, or shared memory alone.

Over tcp fi_scalable_ep needs two ports in a row on each side, so the client is told where its first one is.
"""

UNIT = ("fi_dom_test -n 2", "fi_eq_test", "fi_cq_test", "fi_mr_test", "fi_cntr_test", "fi_setopt_test")
"""Tests of one process, with the option `-p pyfab`."""

UNIT_BY_ADDRESS = ("fi_av_test -g 127.0.0.1 -n 1 -s 127.0.0.1 -e rdm",)

GETINFO = "fi_getinfo_test -s 127.0.0.1 127.0.0.1"
GETINFO_FAILS = {"getinfo_no_hints1", "getinfo_src1"}
"""They want a source address where nobody asks for socket addresses, and names have one once there is an endpoint."""

ALL = (*RUN, *LEFT_OUT, *BY_ADDRESS, *UNIT, *UNIT_BY_ADDRESS, GETINFO)
