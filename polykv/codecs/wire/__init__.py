"""The reference system's binary formats: FB1 and FB2 for fib codes, TQW1 and TQB1 for turbo codes.

All numbers are little-endian; indices, angles and signs are packed from the low bit up. Readers
take the codec that the payload must have been written with, check every header field, count,
length, padding bit and number against it, and name the offset of the first byte that is wrong.
A flipped bit that makes another valid payload (another index, another finite norm) cannot be
seen: the formats carry no checksum. No payload makes a reader allocate more than about 30 times
its own size.
"""
