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

`README.md` beside this file is the table of hostile programs on every tier. Left out: packages other than the standard
library, programs that need a file or a child process (they fail here), asyncio (it needs a socket pair), Windows, and
hardware side channels.
"""
