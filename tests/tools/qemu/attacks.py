"""Attempts that must fail in a run, and actions that must work there. Runs in the sandbox, and once without guard,
where every attempt must succeed.

The argument is a JSON object with the targets. probes.py checks from outside whether an attempt had an effect; if
nothing can be seen from outside, the attempt prints `done: NAME`.
"""

import ctypes
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading

MSG_FASTOPEN = 0x20000000
PTRACE_ATTACH, PTRACE_DETACH = 16, 17
BLKGETSIZE64 = 0x80081272
TO_PROCESS, TO_GROUP, TO_ALL = signal.SIGRTMIN, signal.SIGRTMIN + 1, signal.SIGRTMIN + 2


def write_outside(at):
    with open(at["home"] + "/written", "a") as file:
        file.write("changed")


def create_outside(at):
    open(at["home"] + "/created", "w").close()


def truncate_outside(at):
    os.truncate(at["home"] + "/truncated", 0)


def truncate_readable(at):
    os.truncate(at["home"] + "/shared/truncated", 0)


def open_readable_truncated(at):
    os.close(os.open(at["home"] + "/shared/opened", os.O_RDONLY | os.O_TRUNC))


def rename_readable(at):
    os.rename(at["home"] + "/shared/renamed", at["home"] + "/shared/moved")


def change_mode(at):
    os.chmod(at["home"] + "/shared/mode", 0o777)


def change_times(at):
    os.utime(at["home"] + "/shared/times", (1, 1))


def read_key(at):
    with open(at["home"] + "/.ssh/id_ed25519") as file:
        print("done: read ~/.ssh", file.read())


def connect(at, message=b"connect"):
    with socket.create_connection(("127.0.0.1", at["port"]), 5) as client:
        client.sendall(message)


def connect_in_thread(at):
    thread = threading.Thread(target=connect, args=(at, b"connect in a thread"))
    thread.start()
    thread.join()


def fast_open(at):
    with socket.socket() as client:
        client.sendto(b"fast-open", MSG_FASTOPEN, ("127.0.0.1", at["port"]))


def abstract_stream(at):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(b"\0" + at["abstract"].encode())
        client.sendall(b"abstract-stream")


def abstract_datagram(at):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        client.sendto(b"abstract-datagram", b"\0" + at["abstract"].encode() + b"-datagram")


def signal_process(at):
    os.kill(at["victim"], TO_PROCESS)


def signal_group(at):
    signal.signal(TO_GROUP, signal.SIG_IGN)
    os.kill(0, TO_GROUP)


def signal_all(at):
    signal.signal(TO_ALL, signal.SIG_IGN)
    # Without guard the signal would reach every process of the machine, so the attempt sends it only to the victim.
    os.kill(at["victim"] if at["bare"] else -1, TO_ALL)


def trace(at):
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    if libc.ptrace(PTRACE_ATTACH, at["victim"], None, None) == 0:
        os.waitpid(at["victim"], 0)
        libc.ptrace(PTRACE_DETACH, at["victim"], None, None)
        print("done: trace a process outside")


def read_memory(at):
    with open(f"/proc/{at['victim']}/mem", "rb"), open(f"/proc/{at['victim']}/maps") as maps:
        if maps.read():
            print("done: read memory of a process outside")


def device_ioctl(at):
    device = os.open("/dev/nvme0n1", 3)
    if fcntl.ioctl(device, BLKGETSIZE64, b"\0" * 8) != b"\0" * 8:
        print("done: ioctl on a device")


def leave_branch(at):
    if subprocess.run(["git", "checkout", "-q", "main"], check=False).returncode == 0:
        print("done: git checkout")


ATTEMPTS = {
    "write outside": write_outside,
    "create a file outside": create_outside,
    "truncate outside": truncate_outside,
    "truncate what it may read": truncate_readable,
    "truncate by opening for reading": open_readable_truncated,
    "rename what it may read": rename_readable,
    "change a mode outside": change_mode,
    "change times outside": change_times,
    "read ~/.ssh": read_key,
    "TCP connect": connect,
    "TCP connect in a thread": connect_in_thread,
    "TCP fast open": fast_open,
    "abstract socket": abstract_stream,
    "abstract datagram": abstract_datagram,
    "signal a process outside": signal_process,
    "signal the process group": signal_group,
    "signal every process": signal_all,
    "trace a process outside": trace,
    "read memory of a process outside": read_memory,
    "ioctl on a device": device_ioctl,
    "git checkout": leave_branch,
}


def serve_itself(at):
    """Starts a server in the run and connects to it from another thread."""
    with socket.create_server(("127.0.0.1", at["own_port"])) as server:
        thread = threading.Thread(target=lambda: socket.create_connection(("127.0.0.1", at["own_port"]), 5).close())
        thread.start()
        server.settimeout(10)
        server.accept()
        thread.join()
        print("done: a server of its own")


def serve_unix(_):
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind("socket")
        server.listen()
        client.connect("socket")
        print("done: a unix socket of its own")
    os.remove("socket")


def set_group_bit(_):
    os.mkdir("with-group")
    os.chmod("with-group", 0o2755)
    if os.stat("with-group").st_mode & 0o2000:
        print("done: a set-group-ID directory")


def commit(_):
    with open("work", "w") as file:
        file.write("work")
    subprocess.run(["git", "add", "work"], check=False)
    subprocess.run(["git", "commit", "-q", "-m", "work of the run"], check=False)


WORK = [serve_itself, serve_unix, set_group_bit, commit]

if __name__ == "__main__":
    targets = json.loads(sys.argv[1])
    for attempt in WORK + list(ATTEMPTS.values()):
        try:
            attempt(targets)
        except (OSError, ValueError) as error:
            print(f"{attempt.__name__}: {error}")
        sys.stdout.flush()
    print("done: all attempts")
