"""SGLang on a machine without a GPU: everything here stands in for compiled parts, and is used nowhere else.

SGLang's CPU path wants a package of kernels that needs AMX and is on no package index. `sgl_kernel` stands in for it,
`serving` imports SGLang with it, once per machine, and turns a fork of that process into a server.
"""
