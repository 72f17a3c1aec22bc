"""Pages of a shared library are dropped from memory; the library still works."""

import ctypes
import ctypes.util

from llvmlite import binding

from tidelog.server.kernels import clean_maps, drop_clean_pages, libraries

NAME = "/usr/lib/lib one.so"
MAPS = f"""\
1000-3000 r--p 00000000 fe:00 100                        {NAME}
Size:                  8 kB
Private_Clean:         8 kB
Private_Dirty:         0 kB
Anonymous:             0 kB
VmFlags: rd mr mw me
3000-5000 r-xp 00002000 fe:00 100                        {NAME}
Private_Dirty:         0 kB
Anonymous:             0 kB
5000-6000 r--p 00004000 fe:00 100                        {NAME}
Private_Dirty:         4 kB
Anonymous:             4 kB
6000-7000 rw-p 00005000 fe:00 100                        {NAME}
Private_Dirty:         0 kB
Anonymous:             0 kB
7000-8000 r-xp 00000000 fe:00 101                        /usr/lib/other.so
Private_Dirty:         0 kB
8000-9000 r--p 00000000 00:00 0
Private_Dirty:         0 kB
9000-a000 r--s 00000000 fe:00 100                        {NAME}
Private_Dirty:         0 kB
a000-b000 r-xp 00006000 fe:00 100                        {NAME}
Shared_Dirty:          0 kB
"""


def test_only_unchanged_mappings_of_the_file_are_dropped() -> None:
    found = list(clean_maps(MAPS, [NAME]))
    assert found == [(0x1000, 0x3000), (0x3000, 0x5000), (0xA000, 0xB000)]
    assert list(clean_maps(MAPS, ["/usr/lib/lib"])) == []
    assert list(clean_maps("", [NAME])) == []


def test_a_library_works_on_when_its_pages_were_dropped() -> None:
    llvm = [path for path in libraries() if "llvmlite" in path]

    def compiled() -> str:
        binding.initialize_native_target()
        module = binding.parse_assembly("define i32 @one() { ret i32 1 }")
        module.verify()
        return str(module)

    before = compiled()
    dropped = drop_clean_pages(llvm)
    assert compiled() == before
    if ctypes.util.find_library("c") and dropped:
        assert drop_clean_pages(llvm) == dropped
