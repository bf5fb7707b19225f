"""The live page: a server that starts training runs, follows them and ranks them (``meta500 serve``).

setups.py       what a browser may ask for, and the command line that it becomes
inspection.py   what is looked at in processes of their own: uploaded files, setups, the choices
uploads.py      files that came from outside, under random names
jobs.py         a job and its file, so that a server that was killed knows what it began
manager.py      the queue: starting, stopping and following processes
feed.py         one reader per run folder, many listeners
guard.py        who may ask: hosts, origins, tokens, and the headers of every answer
application.py  the addresses
server.py       sockets and signals
"""
