"""Tests the boundaries of a run from outside, as the user that the argument names. Runs in the guest of scripts/qemu-kernel.

Every attempt of attacks.py is made twice: without guard, where it must have its effect, and in a run of guard, where it must
have none. Prints one line for each: `probe: USER NAME: held`, `BROKEN`, or `UNTESTED` if it had no effect without guard.
"""

import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

from attacks import ATTEMPTS, TO_ALL, TO_GROUP, TO_PROCESS

HERE = os.path.dirname(os.path.abspath(__file__))
OWN_PORT = 4100
RECEIVED = []

VICTIM = """
import signal, sys
def note(number, _):
    print(number, flush=True)
for number in map(int, sys.argv[1:]):
    signal.signal(number, note)
print("ready", flush=True)
while True:
    signal.pause()
"""


def become(user):
    entry = pwd.getpwnam(user)
    os.setgroups([])
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)
    os.environ.clear()
    os.environ.update(HOME=entry.pw_dir, USER=user, PATH="/usr/bin:/usr/sbin", LANG="C.UTF-8")
    os.chdir(entry.pw_dir)
    # Without guard, the attempts send signals to the whole process group, so this process leaves the group of its
    # parent and ignores them.
    os.setpgid(0, 0)
    for number in (TO_PROCESS, TO_GROUP, TO_ALL):
        signal.signal(number, signal.SIG_IGN)


def shell(command):
    return subprocess.run(command, shell=True, check=True, capture_output=True, text=True).stdout


def listen(server):
    def serve():
        while True:
            client, _ = server.accept()
            client.settimeout(5)
            with client:
                try:
                    RECEIVED.append(client.recv(100).decode())
                except OSError:
                    pass

    threading.Thread(target=serve, daemon=True).start()


def start_servers(abstract):
    tcp = socket.create_server(("127.0.0.1", 0))
    # The attempts use TCP fast open, which works only if the server enables it.
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_FASTOPEN, 5)
    listen(tcp)
    stream = socket.socket(socket.AF_UNIX)
    stream.bind(b"\0" + abstract.encode())
    stream.listen()
    listen(stream)
    datagram = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    datagram.bind(b"\0" + abstract.encode() + b"-datagram")

    def receive():
        while True:
            RECEIVED.append(datagram.recv(100).decode())

    threading.Thread(target=receive, daemon=True).start()
    return tcp.getsockname()[1]


class World:
    """The files and processes outside a run. Each attempt gets new ones."""

    def __init__(self, home):
        self.home = home
        for name in ("shared", "app", ".ssh"):
            shutil.rmtree(f"{home}/{name}", ignore_errors=True)
            os.mkdir(f"{home}/{name}")
        for name in ("written", "truncated", "shared/truncated", "shared/opened", "shared/renamed", "shared/mode",
                     "shared/times", ".ssh/id_ed25519"):
            with open(f"{home}/{name}", "w") as file:
                file.write("precious")
            os.chmod(f"{home}/{name}", 0o644)
        if os.path.exists(f"{home}/created"):
            os.remove(f"{home}/created")
        shell("cd app && git init -q -b main && git config user.name Ada && git config user.email ada@example.org"
              " && echo one > file && git add file && git commit -q -m one && git branch other")
        numbers = [str(int(number)) for number in (TO_PROCESS, TO_GROUP, TO_ALL)]
        self.victim = subprocess.Popen([sys.executable, "-c", VICTIM, *numbers], stdout=subprocess.PIPE, text=True)
        self.victim.stdout.readline()
        RECEIVED.clear()

    def text(self, name):
        with open(f"{self.home}/{name}") as file:
            return file.read()

    def effects(self, output):
        """Returns the names of the attempts that had an effect."""
        time.sleep(1)
        self.victim.kill()
        signals = self.victim.stdout.read().split()
        shared = f"{self.home}/shared"
        seen = {
            "write outside": self.text("written") != "precious",
            "create a file outside": os.path.exists(f"{self.home}/created"),
            "truncate outside": self.text("truncated") != "precious",
            "truncate what it may read": self.text("shared/truncated") != "precious",
            "truncate by opening for reading": self.text("shared/opened") != "precious",
            "rename what it may read": os.path.exists(f"{shared}/moved"),
            "change a mode outside": os.stat(f"{shared}/mode").st_mode & 0o777 != 0o644,
            "change times outside": os.stat(f"{shared}/times").st_mtime == 1,
            "TCP connect": "connect" in RECEIVED,
            "TCP connect in a thread": "connect in a thread" in RECEIVED,
            "TCP fast open": "fast-open" in RECEIVED,
            "abstract socket": "abstract-stream" in RECEIVED,
            "abstract datagram": "abstract-datagram" in RECEIVED,
            "signal a process outside": str(int(TO_PROCESS)) in signals,
            "signal the process group": str(int(TO_GROUP)) in signals,
            "signal every process": str(int(TO_ALL)) in signals,
        }
        return {name for name in ATTEMPTS if seen.get(name, f"done: {name}" in output)}


def attack(world, command, port, abstract, bare):
    at = {"home": world.home, "port": port, "own_port": OWN_PORT, "abstract": abstract, "victim": world.victim.pid, "bare": bare}
    command = [*command, "python3", f"{HERE}/attacks.py", json.dumps(at)]
    return subprocess.run(command, cwd=f"{world.home}/app", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=500, check=False)


def main():
    user = sys.argv[1]
    become(user)
    abstract = f"outside-{user}"
    port = start_servers(abstract)

    def report(name, verdict):
        print(f"probe: {user:<5} {name + ':':<34} {verdict}", flush=True)

    def show(text):
        for line in text.splitlines():
            print(f"detail: {user}: {line}", flush=True)

    doctor = subprocess.run(["guard", "doctor"], capture_output=True, text=True, check=False)
    show(doctor.stdout + doctor.stderr)
    world = World(os.environ["HOME"])
    shell("cd app && git checkout -q other")
    bare = world.effects(attack(world, [], port, abstract, True).stdout)
    world = World(os.environ["HOME"])
    guard = ["guard", "run", "--policy", "strict", "--read", f"{world.home}/shared", "--listen", str(OWN_PORT), "--"]
    ran = attack(world, guard, port, abstract, False)
    inside = world.effects(ran.stdout)
    for name in ATTEMPTS:
        verdict = "BROKEN" if name in inside else "held" if name in bare else "UNTESTED"
        report(name, verdict)
    for name in ("all attempts", "a server of its own", "a unix socket of its own", "a set-group-ID directory"):
        report(name, "works" if f"done: {name}" in ran.stdout else "BROKEN")
    log = shell("cd app && git log --all --format=%s")
    is_received = "work of the run" in log and "main" in shell("cd app && git branch --show-current")
    report("commit received", "works" if is_received else "BROKEN")
    without = subprocess.run(["guard", "run", "--namespaces", "off", "--", "true"], cwd=f"{world.home}/app",
                             capture_output=True, text=True, check=False)
    is_refused = without.returncode != 0 and "Landlock ABI" in without.stderr
    report("refused without namespaces", "held" if is_refused else "BROKEN")
    show(without.stderr)
    demo = subprocess.run(["guard", "demo"], capture_output=True, text=True, check=False)
    report("guard demo", "works" if demo.returncode == 0 else "BROKEN")
    if demo.returncode != 0:
        show(demo.stdout + demo.stderr)
    if inside or not is_received or "done: all attempts" not in ran.stdout:
        show(ran.stdout)
    result = subprocess.run(["guard", "run", "--json", "--", "true"], cwd=f"{world.home}/app", capture_output=True, text=True,
                            check=False)
    show(json.dumps(json.loads(result.stdout)["enforcement"]))


if __name__ == "__main__":
    main()
