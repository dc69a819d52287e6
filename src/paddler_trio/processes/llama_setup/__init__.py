"""Put a llama.cpp that provably runs on this machine into the environment this runs in.

``pip install llama-cpp-python`` compiles for whatever the CPU advertises. Virtual machines
advertise features that fault when used (AMX tiles are the known case), old compilers reject
others, and pip's wheel cache hands back a broken build without looking at CMAKE_ARGS. So:

1. A build already proven in this environment is kept; that answer takes a fraction of a second.
   One of our own choice is kept only as long as we would still build it in this way.
2. Otherwise recipes are tried in order, from everything this CPU can use down to the baseline
   every 64-bit CPU runs. Each has the RPC back end, so that a model can be spread over machines.
   Whoever sets CMAKE_ARGS gets exactly that and nothing else is tried.
3. A recipe counts when a child process has decoded a prompt with it. Its wheel is then kept in
   ``${XDG_CACHE_HOME:-~/.cache}/paddler-trio/wheels`` for the next environment on this machine.

Invariants: no wheel is used that this program did not build or see proven; nothing is remembered
before its proof; a remembered proof is void as soon as the CPU or the installed libraries differ.

Only the standard library is imported here, and what of this package does the same: ``make setup``
runs this from the source tree before anything is installed.
"""
