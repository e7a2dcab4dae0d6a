"""What every package may use: errors, names in registries, randomness, files and their locks, and torch when needed.

`errors` has the exceptions. `registry` keeps named objects, with `content_digest` for what they are made of.
`randomness` draws numbers for a purpose. `files` reads and writes, and locks a folder. `resources` says what is left of
memory and disk. `limits`, `quoting` and `key_errors` word what is refused. `lazy_torch` imports torch at its first use.
"""
