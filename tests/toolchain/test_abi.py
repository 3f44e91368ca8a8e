"""The LLVM pass `SbpfAbi`: what it does not handle is an error that names the function, never another program."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.toolchain.paths import TOOLCHAIN

pytestmark = [pytest.mark.toolchain, pytest.mark.usefixtures("debian_packages")]

OPT = "/usr/lib/llvm-22/bin/opt"
HEAD = 'target datalayout = "e-m:e-p:64:64-i64:64-i128:128-n32:64-S128"\n'
WIDE = "i64 %a, i64 %b, i64 %c, i64 %d, i64 %e, i64 %f"
"""Arguments of a function whose signature the pass rewrites."""


@pytest.fixture(scope="module")
def abi() -> str:
    """The compiled pass."""
    assert shutil.which(OPT)
    output = subprocess.run([TOOLCHAIN / "build-sbf", "--passes"], capture_output=True, text=True, check=True).stdout
    (found,) = (name for name in output.split() if Path(name).name.startswith("SbpfAbi-"))
    return found


def rewrite(abi: str, source: str) -> subprocess.CompletedProcess[str]:
    command = [OPT, f"--load-pass-plugin={abi}", "--passes=sbpf-abi,verify", "-S", "-"]
    return subprocess.run(command, input=HEAD + source, capture_output=True, text=True, check=False)


def defined(name: str, body: str, parameters: str = "ptr %p", result: str = "void") -> str:
    return f"define {result} @{name}({parameters}) {{\n{body}\n}}\n"


UNHANDLED = {
    "an exception that is caught": (
        "declare i32 @sol_personality(...)\n"
        + defined("g", "ret void", "")
        + "define void @f() personality ptr @sol_personality {\n  invoke void @g() to label %a unwind label %b\n"
        "a:\n  ret void\nb:\n  %l = landingpad { ptr, i32 } cleanup\n  ret void\n}\n",
        "f: the instruction invoke",
    ),
    "an assembly that jumps": (
        defined("f", '  callbr void asm "", "!i"() to label %a [label %b]\na:\n  ret void\nb:\n  ret void'),
        "f: the instruction callbr",
    ),
    "an argument that is copied": (
        defined("f", "  ret void", f"ptr byval([64 x i8]) %p, {WIDE}"),
        "f: the attribute byval([64 x i8]) of an argument",
    ),
    "an argument that a call copies": (
        defined("g", "  ret void") + defined("f", "  call void @g(ptr byval(i64) %p)\n  ret void"),
        "f: the attribute byval(i64) of an argument of a call",
    ),
    "an argument in the caller's frame": (
        defined("f", "  ret void", "ptr inalloca(i64) %p"),
        "f: the attribute inalloca(i64) of an argument",
    ),
    "an argument in another register": (
        defined("f", "  ret void", "ptr swiftself %p"),
        "f: the attribute swiftself of an argument",
    ),
    "a result in another register": (
        defined("f", "  ret i64 1", result="inreg i64"),
        "f: the attribute inreg of the result",
    ),
    "a function outside of the program": (
        "declare i64 @strlen(ptr)\n" + defined("f", "  %l = call i64 @strlen(ptr %p)\n  ret void"),
        "strlen: is declared outside of the program, and no syscall",
    ),
    "a syscall of six arguments": (
        f"declare void @sol_new_({WIDE})\n",
        "sol_new_: a syscall takes five registers and returns one",
    ),
    "a syscall of two results": (
        "declare { i64, i64 } @sol_new_()\n",
        "sol_new_: a syscall takes five registers and returns one",
    ),
    "a variable outside of the program": (
        "@elsewhere = external global i64\n",
        "elsewhere: a variable outside of the program",
    ),
    "a second name": (
        defined("f", "  ret void", WIDE) + "@other = alias void (i64, i64, i64, i64, i64, i64), ptr @f\n",
        "other: another name of a function or variable",
    ),
    "a call as another type": (
        defined("g", "  ret void", WIDE) + defined("f", "  call void @g(ptr %p)\n  ret void"),
        "f: calls g as another type than it has",
    ),
    "a call by another convention": (
        "define fastcc void @g(ptr %p) {\n  ret void\n}\n" + defined("f", "  call void @g(ptr %p)\n  ret void"),
        "f: calls g as another type than it has",
    ),
    "a pointer called as no function is": (
        "@table = constant ptr @g\n"
        + defined("g", "  ret void", WIDE)
        + defined("f", "  %g = load ptr, ptr @table\n  %r = call { i64, i64 } %g(ptr %p)\n  ret void"),
        "f: calls a pointer as a type that no function in the program has",
    ),
    "a variable number of arguments": (
        defined("f", "  ret void", "ptr %p, ..."),
        "f: a variable number of arguments",
    ),
    "a call that must reuse the frame": (
        defined("g", "  ret void") + defined("f", "  musttail call void @g(ptr %p)\n  ret void"),
        "f: a call that must be in its caller's frame",
    ),
    "operands apart from the arguments": (
        defined("g", "  ret void") + defined("f", '  call void @g(ptr %p) [ "deopt"(i32 1) ]\n  ret void'),
        "f: operands apart from a call's arguments",
    ),
    "a convention of another language": (
        "define swiftcc void @f(ptr %p) {\n  ret void\n}\n",
        "f: its calling convention",
    ),
    "a section of its own": (
        f'define void @f({WIDE}) section ".other" {{\n  ret void\n}}\n',
        "f: a section, data, a collector or arguments with a meaning of their own",
    ),
    "a copy of single words": (
        "declare void @llvm.memcpy.element.unordered.atomic.p0.p0.i64(ptr, ptr, i64, i32)\n"
        + defined(
            "f",
            "  call void @llvm.memcpy.element.unordered.atomic.p0.p0.i64"
            "(ptr align 8 %p, ptr align 8 %p, i64 256, i32 8)\n  ret void",
        ),
        "f: calls llvm.memcpy.element.unordered.atomic.p0.p0.i64",
    ),
}


@pytest.mark.parametrize(("source", "expected"), UNHANDLED.values(), ids=UNHANDLED)
def test_pass_stops_at_what_it_does_not_handle(abi: str, source: str, expected: str) -> None:
    result = rewrite(abi, source)
    assert result.returncode == 1
    assert result.stderr.startswith("LLVM ERROR: SbpfAbi does not handle:\n")
    assert f"\n  {expected}" in result.stderr
    assert result.stdout == ""


def test_everything_unhandled_is_named_at_once(abi: str) -> None:
    sources = ["a variable outside of the program", "a function outside of the program"]
    result = rewrite(abi, "".join(UNHANDLED[name][0] for name in sources))
    assert [UNHANDLED[name][1] in result.stderr for name in sources] == [True, True]


def test_definition_call_and_table_of_a_wide_function_agree(abi: str) -> None:
    # Given a function of six arguments and two results, called by its name and through a table
    arguments = ", ".join(f"i64 {number}" for number in range(6))
    source = (
        "@table = constant ptr @g\n"
        + defined("g", "  ret { i64, i64 } zeroinitializer", f"ptr noundef %p, {WIDE}", "{ i64, i64 }")
        + defined(
            "f",
            f"  %one = call {{ i64, i64 }} @g(ptr nonnull %p, {arguments})\n"
            "  %h = load ptr, ptr @table\n"
            f"  %two = call {{ i64, i64 }} %h(ptr %p, {arguments})\n  ret void",
        )
    )
    # When it is rewritten
    result = rewrite(abi, source)
    # Then all three have the same five registers and no result
    assert result.returncode == 0, result.stderr
    signatures = re.findall(r"(?:define|call) (\w+) [@%][gh]\w*\(([^)]*)\)", result.stdout)
    kinds = {(returned, tuple(one.split()[0] for one in given.split(","))) for returned, given in signatures}
    assert len(signatures) == 3
    assert kinds == {("void", ("ptr", "ptr", "i64", "i64", "ptr"))}
