"""Build a Debian package: the application in an environment of its own, with a llama.cpp in it.

.venv/bin/python tools/build_deb.py dist/paddler_trio-0.1.0-py3-none-any.whl --output dist

The package is for the release of Debian, the Python and the architecture it is built on. What is
where in it, and why, is in docs/decisions/0071-packages.md. Invariants: everything in
/usr/lib/paddler-trio is dpkg's, and nothing there names the folder it was built in; a build of
llama.cpp made on the machine lies in /var/lib/paddler-trio/llama and comes first.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from paddler_trio.processes.engine.proof import BUNDLED_MODEL, prove_in_child
from paddler_trio.processes.llama_setup.environment import FOLDER_FILE
from paddler_trio.processes.llama_setup.recipes import (
    PORTABLE_FLAGS,
    VERSION,
    choose_recipes,
    portable_recipes,
    wheel_key,
)
from paddler_trio.processes.llama_setup.wheel_build import (
    Pip,
    build_wheel,
    find_compiler,
    find_kept,
    keep_wheel,
)
from paddler_trio.system.machine import read_cpu_flags

sys.path.insert(0, str(Path(__file__).resolve().parent))
from software_bill import write_bill
from write_manual import write_pages

ROOT = Path(__file__).resolve().parents[1]
PARTS = ROOT / "deb"
HOME = Path("usr/lib/paddler-trio")
OWN_BUILDS = Path("/var/lib/paddler-trio/llama")
COMPLETIONS = {
    "bash": "bash-completion/completions/paddler-trio",
    "fish": "fish/vendor_completions.d/paddler-trio.fish",
    "zsh": "zsh/vendor-completions/_paddler-trio",
}
TEST_FOLDERS = ("tests", "_tests")
SCRIPTS = ("postinst", "postrm", "prerm")
SETTINGS = ("agent.env", "balancer.env")


def say(text: str) -> None:
    """One line for the person waiting."""
    print(f"==> {text}", flush=True)


def run(*command: str | Path, **variables: str) -> str:
    """Its output; its words are the error, and the end."""
    ended = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | variables,
        check=False,
    )
    if ended.returncode != 0:
        sys.exit(f"build_deb: {command[0]} failed:\n{ended.stdout.strip()}")
    return ended.stdout


def provide_llama(choice: str) -> Path:
    """The wheel of llama.cpp, built here if it was not before."""
    machine = platform.machine()
    if choice == "best":
        flags = read_cpu_flags()
        recipe = choose_recipes(flags, machine=machine)[0]
    else:
        flags = PORTABLE_FLAGS
        recipe = portable_recipes(machine)[0]
    system = f"{sysconfig.get_platform()} {platform.libc_ver()}"
    key = wheel_key(recipe, flags=flags, compiler=find_compiler(), system=system)
    kept = find_kept(key)
    if kept is not None:
        return kept
    with tempfile.TemporaryDirectory(prefix="paddler-trio-llama-") as scratch:
        folder = Path(scratch)
        wheel = build_wheel(recipe, folder, pip=pip_of(None), log=folder / "llama-build.log")
        if wheel is None:
            sys.exit("build_deb: llama.cpp was not compiled")
        keep_wheel(wheel, key)
    kept = find_kept(key)
    if kept is None:
        sys.exit("build_deb: the wheel of llama.cpp cannot be kept in the cache")
    return kept


def pip_of(python: Path | None) -> Pip:
    """The pip beside this program, at work for another environment."""
    target = () if python is None else ("--python", str(python))
    return Pip((sys.executable, "-m", "pip"), target)


def install_application(root: Path, wheel: Path, llama: Path, python: Path) -> None:
    """An environment of ``python`` below ``root``, as it will lie below ``/``."""
    home = root / HOME
    run(python, "-m", "venv", "--without-pip", home)
    pip = pip_of(home / "bin" / "python3")
    pip.run("install", "--quiet", "--no-compile", f"{wheel}[discovery]")
    # What the bindings import; the bindings themselves come from where a better build may be put.
    pip.run("install", "--quiet", "--no-compile", str(llama))
    pip.run("uninstall", "--quiet", "--yes", "llama-cpp-python")
    bundled = home / "llama"
    pip.run("install", "--quiet", "--no-compile", "--no-deps", "--target", str(bundled), str(llama))
    site = packages_of(home)
    (site / "paddler-trio-llama.pth").write_text(f"{OWN_BUILDS / VERSION}\n{bundled}\n")
    proof = prove_in_child(BUNDLED_MODEL, python=home / "bin" / "python3")
    if not proof.ok:
        sys.exit(f"build_deb: the packed llama.cpp does not run here: {proof.error}")
    say(f"llama.cpp decoded {proof.tokens} tokens: {proof.system_info}")
    (site / "paddler-trio-llama.pth").write_text(
        f"{OWN_BUILDS / VERSION}\n{Path('/') / HOME / 'llama'}\n"
    )
    (home / FOLDER_FILE).write_text(f"{OWN_BUILDS}\n")


def packages_of(home: Path) -> Path:
    """The environment's folder of packages."""
    [site] = home.glob("lib/python3.*/site-packages")
    return site


def move_home(root: Path, version: str) -> None:
    """Take out of the environment where it was made, and what only serves to change it."""
    home = root / HOME
    for file in (home / "bin").iterdir():
        if not file.name.startswith("python"):
            file.unlink()
    program = home / "bin" / "paddler-trio"
    program.write_text(
        f"#!/{HOME}/bin/python3\n"
        "import sys\n\nfrom paddler_trio.cli import main\n\n"
        'if __name__ == "__main__":\n    sys.exit(main())\n'
    )
    program.chmod(0o755)
    (home / "pyvenv.cfg").write_text(
        f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {version}\n"
    )
    shutil.rmtree(home / "include", ignore_errors=True)
    for tests in [each for each in packages_of(home).rglob("*") if each.name in TEST_FOLDERS]:
        shutil.rmtree(tests)  # of other people's packages: a fifth of the size
    (home / "lib64").unlink(missing_ok=True)
    for folder in ("bin", "include", "lib"):  # second copies, for those who compile against it
        shutil.rmtree(home / "llama" / folder, ignore_errors=True)
    link_copies(home / "llama" / "llama_cpp" / "lib")
    for note in home.rglob("direct_url.json"):  # names the wheel's path on this machine
        note.unlink()
    for file in home.rglob("*"):
        if file.is_file() and not file.is_symlink():
            runs = file.parent == home / "bin"
            file.chmod(0o755 if runs else 0o644)
        elif file.is_dir():
            file.chmod(0o755)
    # Whoever runs the daemons may not write here: compiled now, or at every start.
    run(
        home / "bin" / "python3",
        "-m",
        "compileall",
        "-q",
        "-f",  # what ran above has left some that are checked by time
        "--invalidation-mode=unchecked-hash",
        "-s",
        root,
        "-p",
        "/",
        home / "lib",
        home / "llama",
    )
    (home / "bin" / "python3").unlink()  # of the machine it is installed on
    (home / "bin" / "python3").symlink_to("../../../bin/python3")


def link_copies(folder: Path) -> None:
    """Links in place of the copies of libraries that a wheel has, since it cannot have links."""
    first: dict[str, Path] = {}
    for library in sorted(folder.glob("*.so*"), key=lambda path: -len(path.name)):
        digest = hashlib.sha256(library.read_bytes()).hexdigest()
        original = first.setdefault(digest, library)
        if original != library:
            library.unlink()
            library.symlink_to(original.name)


def install_around(root: Path) -> None:
    """Units, settings, the command, manual pages, and what Debian asks for."""
    units = root / "usr" / "lib" / "systemd" / "system"
    units.mkdir(parents=True)
    for unit in sorted((ROOT / "systemd").iterdir()):
        (units / unit.name).write_text(as_installed(unit.read_text()))
    settings = root / "etc" / "paddler-trio"
    settings.mkdir(parents=True)
    for name in SETTINGS:
        shutil.copyfile(PARTS / name, settings / name)
        (settings / name).chmod(0o640)  # systemd reads them as root; one may hold a hub's token
    commands = root / "usr" / "bin"
    commands.mkdir(parents=True)
    (commands / "paddler-trio").symlink_to("../lib/paddler-trio/bin/paddler-trio")
    pages = root / "usr" / "share" / "man" / "man1"
    for page in write_pages(pages):
        compress(page)
    for shell, place in COMPLETIONS.items():
        script = root / "usr" / "share" / place
        script.parent.mkdir(parents=True)
        script.write_text(run(sys.executable, "-m", "paddler_trio", "completion", shell))
    documents = root / "usr" / "share" / "doc" / "paddler-trio"
    documents.mkdir(parents=True)
    shutil.copyfile(PARTS / "copyright", documents / "copyright")
    shutil.copyfile(ROOT / "NOTICE", documents / "NOTICE")
    overrides = root / "usr" / "share" / "lintian" / "overrides"
    overrides.mkdir(parents=True)
    shutil.copyfile(PARTS / "lintian-overrides", overrides / "paddler-trio")


def as_installed(unit: str) -> str:
    """The unit with the paths of the package, without how to install it from source."""
    head, marker, rest = unit.partition("[Unit]")
    paragraphs = head.split("\n#\n")
    kept = [each for each in paragraphs if "/opt/paddler-trio" not in each]
    text = "\n#\n".join(kept).replace(" To install:", "", 1).rstrip("\n") + "\n\n" + marker + rest
    text = text.replace("/opt/paddler-trio/.venv/bin/paddler-trio", "/usr/bin/paddler-trio")
    text = text.replace("file:/opt/paddler-trio/README.md", "man:paddler-trio(1)")
    left = re.findall(r"^.*/opt/.*$", text, re.MULTILINE)
    if left:
        sys.exit(f"build_deb: the unit names what the package lacks: {left[0]}")
    return text


def compress(file: Path) -> None:
    """As Debian wants its documents: the best compression, and no time in it."""
    packed = file.with_name(f"{file.name}.gz")
    packed.write_bytes(gzip.compress(file.read_bytes(), 9, mtime=0))
    file.unlink()


def maintainer() -> str:
    """Who packs it, in the variables that Debian's own tools read."""
    name = os.environ.get("DEBFULLNAME", "paddler-trio")
    return f"{name} <{os.environ.get('DEBEMAIL', 'root@localhost')}>"


def write_control(root: Path, *, version: str, python_version: str, packed_at_s: int) -> None:
    """The folder DEBIAN, and the changelog that dpkg wants to agree with it."""
    major, minor = (int(part) for part in python_version.split(".")[:2])
    size = sum(f.lstat().st_size for f in root.rglob("*") if not f.is_dir())
    facts = {
        "VERSION": version,
        "ARCHITECTURE": run("dpkg", "--print-architecture").strip(),
        "PYTHON": f"{major}.{minor}",
        "NEXT_PYTHON": f"{major}.{minor + 1}",
        "GLIBC": platform.libc_ver()[1],
        "SIZE_KIB": str(size // 1024),
        "LLAMA_VERSION": VERSION,
        "MAINTAINER": maintainer(),
    }
    control = root / "DEBIAN"
    control.mkdir()
    for name in ("control", *SCRIPTS):
        text = (PARTS / name).read_text()
        for fact, value in facts.items():
            text = text.replace(f"@{fact}@", value)
        (control / name).write_text(text)
        (control / name).chmod(0o755 if name in SCRIPTS else 0o644)
    (control / "conffiles").write_text("".join(f"/etc/paddler-trio/{each}\n" for each in SETTINGS))
    date = run("date", "--utc", f"--date=@{packed_at_s}", "+%a, %d %b %Y %H:%M:%S +0000").strip()
    changelog = root / "usr" / "share" / "doc" / "paddler-trio" / "changelog.Debian"
    changelog.write_text(
        f"paddler-trio ({version}) unstable; urgency=medium\n\n  * Release.\n\n"
        f" -- {facts['MAINTAINER']}  {date}\n"
    )
    compress(changelog)
    sums = (
        f"{hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest()}"
        f"  {file.relative_to(root)}\n"
        for file in sorted(root.rglob("*"))
        if file.is_file() and not file.is_symlink() and control not in file.parents
    )
    (control / "md5sums").write_text("".join(sums))


def main() -> None:
    """Build, and print the package's path as the last line."""
    parser = argparse.ArgumentParser(description="Build a Debian package of a wheel.")
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    parser.add_argument("--revision", type=int, default=1, help="of the package, from 1")
    parser.add_argument("--python", type=Path, default=Path("/usr/bin/python3"))
    parser.add_argument(
        "--llama",
        choices=("portable", "best"),
        default="portable",
        help="portable: x86-64-v3; best: for processors like this one",
    )
    parser.add_argument("--compression", default="xz", choices=("xz", "gzip"))
    arguments = parser.parse_args()
    version = f"{arguments.wheel.name.split('-')[1]}-{arguments.revision}"
    shown = "import platform; print(platform.python_version())"
    python_version = run(arguments.python, "-c", shown).strip()
    packed_at_s = int(os.environ.get("SOURCE_DATE_EPOCH", "1577836800"))

    llama = provide_llama(arguments.llama)
    with tempfile.TemporaryDirectory(prefix="paddler-trio-deb-") as scratch:
        root = Path(scratch) / "root"
        root.mkdir(mode=0o755)
        say(f"installing {arguments.wheel.name} for Python {python_version}")
        install_application(root, arguments.wheel, llama, arguments.python)
        install_around(root)
        bill = root / "usr" / "share" / "doc" / "paddler-trio" / "sbom.cdx.json"
        write_bill(bill, [packages_of(root / HOME), root / HOME / "llama"])
        compress(bill)
        move_home(root, python_version)
        write_control(root, version=version, python_version=python_version, packed_at_s=packed_at_s)
        arguments.output.mkdir(parents=True, exist_ok=True)
        say("packing")
        packed = run(
            "dpkg-deb",
            "--root-owner-group",
            f"-Z{arguments.compression}",
            *(["-z1"] if arguments.compression == "gzip" else []),
            "--build",
            root,
            arguments.output,
            SOURCE_DATE_EPOCH=str(packed_at_s),
        )
    [name] = re.findall(r"in '(.+\.deb)'", packed)
    print(name)


if __name__ == "__main__":
    main()
