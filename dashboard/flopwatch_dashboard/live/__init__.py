"""The live path: what open pages show is read once a tick for all of them and sent over sockets.

A page says in one function what it shows at a time (`reading`). The hub (`hub`) reads that for as
long as somebody follows it (`topic`), and each open page gets what is new to it (`socket`).
"""
