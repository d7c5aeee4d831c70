r"""Run Python programs that a model wrote: no files, no network, no other processes, bounded time and memory.

    tier = probe.probe()                                     what contains programs here, shown by a canary
    limits = limits.ResourceLimits(wall_s=5, cpu_s=5)
    with pool.Sandbox(tier, workers=2) as sandbox:
        ran = sandbox.submit(running.Script("print(input())", limits, stdin="4\n")).result()

Two tiers, the first that works here is used:

    landlock     Landlock, seccomp, resource limits and, for root, an unused uid; needs no package
    bubblewrap   the namespaces of `bwrap` around seccomp and resource limits

Each program is a fork of a warm, minimal interpreter (`zygote`: nothing but the standard library, an empty environment)
that confines itself for good before it runs a line of the program (`cell`). The standard library is in its memory,
so a confined program has no file system at all: no call that takes a path is allowed, nothing is writable,
nothing is left to clean up. It cannot start a process, so killing one process ends a program. When this process dies,
the zygote reads the end of its control stream and kills what runs; when the zygote dies, the kernel kills its forks.

Code that names numpy or asyncio runs in forks of a second, richer zygote, which has loaded numpy, where it is installed
for this interpreter, and whose event loops wake themselves through a pipe. A program that names tempfile gets temporary
files in its own memory (`memory_files`).

`README.md` beside this file is the table of hostile and honest programs on every tier. Left out: other packages,
programs that need a file or a child process (they fail here), Windows, and hardware side channels.
"""
