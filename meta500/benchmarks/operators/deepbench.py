"""The shapes of DeepBench's convolutions and matrix products, as numbers only.

Source: Baidu Research, DeepBench, github.com/baidu-research/DeepBench (commit da81ba7): the sizes in
``code/kernels/conv_problems.h`` and ``gemm_problems.h``, the applications in its spreadsheets
``DeepBenchKernels_train.xlsx`` and ``DeepBenchKernels_inference.xlsx``. Where the spreadsheets have other
sizes than the headers, the headers count, since they are what DeepBench runs; only the convolution for
keyword spotting stands in the spreadsheet alone.

A line describes one layer; at its end stand the batch sizes (convolutions) or columns N (matrix products) of
each of DeepBench's sets: "training", "server" and "device" inference.
"""

from __future__ import annotations

# application, channels, height, width, filters, kernel height and width, pads, strides, batches
CONVOLUTIONS = """\
speech     1  161  700   32  5 20  0  0  2  2  training=4,8,16,32 server=1,2,4
speech    32   79  341   32  5 10  0  0  2  2  training=4,8,16,32 server=1,2,4
ocr        1   48  480   16  3  3  1  1  1  1  training=16 server=1
ocr       16   24  240   32  3  3  1  1  1  1  training=16 server=1
ocr       32   12  120   64  3  3  1  1  1  1  training=16 server=1
ocr       64    6   60  128  3  3  1  1  1  1  training=16 server=1
face       3  108  108   64  3  3  1  1  2  2  training=8 server=1
face      64   54   54   64  3  3  1  1  1  1  training=8 server=1
face     128   27   27  128  3  3  1  1  1  1  training=8 server=1
face     128   14   14  256  3  3  1  1  1  1  training=8 server=1
face     256    7    7  512  3  3  1  1  1  1  training=8 server=1
vision     3  224  224   64  3  3  1  1  1  1  training=8,16 server=1,2
vision    64  112  112  128  3  3  1  1  1  1  training=8,16 server=1,2
vision   128   56   56  256  3  3  1  1  1  1  training=8,16 server=1,2
vision   256   28   28  512  3  3  1  1  1  1  training=8,16 server=1,2
vision   512   14   14  512  3  3  1  1  1  1  training=8,16 server=1,2
vision   512    7    7  512  3  3  1  1  1  1  training=8,16 server=1,2 device=1
vision     3  224  224   64  7  7  3  3  2  2  training=16 server=1,2
vision   192   28   28   32  5  5  2  2  1  1  training=16 server=1,2
vision   192   28   28   64  1  1  0  0  1  1  training=16 server=1,2
vision   512   14   14   48  5  5  2  2  1  1  training=16 server=1,2
vision   512   14   14  192  1  1  0  0  1  1  training=16 server=1,2
vision   832    7    7  256  1  1  0  0  1  1  training=16 server=1,2
vision   832    7    7  128  5  5  2  2  1  1  training=16 server=1,2
face      64   56   56   64  3  3  1  1  1  1  training=8,16 server=1,2
face      64   56   56  256  1  1  0  0  2  2  training=8,16 server=1,2
face     128   28   28  128  3  3  1  1  1  1  training=8,16 server=1,2
face     128   28   28  512  1  1  0  0  2  2  training=8,16 server=1,2
face     256   14   14  256  1  1  0  0  1  1  training=8,16 server=1,2
face     256   14   14  256  3  3  1  1  1  1  training=8,16 server=1,2
face     256   14   14 1024  1  1  0  0  2  2  training=8,16 server=1,2
face     512    7    7  512  1  1  0  0  1  1  training=8,16 server=1,2
face    2048    7    7  512  1  1  3  3  2  2  training=8,16 server=1,2
speaker    1  161  700   64  5  5  1  1  2  2  training=16 server=1,2
speaker   64   80  350   64  3  3  1  1  1  1  training=16 server=1,2
speaker   64   80  350  128  5  5  1  1  2  2  training=16 server=1,2
speaker  128   40  175  128  3  3  1  1  1  1  training=16 server=1,2
speaker  128   40  175  256  5  5  1  1  2  2  training=16 server=1,2
speaker  256   20   84  256  3  3  1  1  1  1  training=16 server=1,2
speaker  256   20   84  512  5  5  1  1  2  2  training=16 server=1,2
speaker  512   10   42  512  3  3  1  1  1  1  training=16 server=1,2
resnet    64  112  112   64  1  1  0  0  1  1  training=8,16 server=1,2 device=1
resnet    64   56   56  256  1  1  0  0  1  1  training=8,16 server=1,2 device=1
resnet   256   56   56   64  1  1  0  0  1  1  training=8,16 server=1,2 device=1
resnet   256   56   56  128  1  1  0  0  2  2  training=8,16 server=1,2 device=1
resnet   128   28   28  512  1  1  0  0  1  1  training=8,16 server=1,2 device=1
resnet   512   28   28  128  1  1  0  0  1  1  training=8,16 server=1,2 device=1
resnet   512   28   28  256  1  1  0  0  2  2  training=8,16 server=1,2 device=1
resnet   256   14   14 1024  1  1  0  0  1  1  training=8,16 server=1,2 device=1
resnet   512   28   28 1024  1  1  0  0  2  2  training=8,16 server=1,2 device=1
resnet  1024   14   14  256  1  1  0  0  1  1  training=8,16 server=1,2 device=1
resnet  1024   14   14  512  1  1  0  0  2  2  training=8,16 server=1,2 device=1
resnet   512    7    7 2048  1  1  0  0  1  1  training=8,16 server=1,2 device=1
resnet  1024   14   14 2048  1  1  0  0  2  2  training=8,16 server=1,2 device=1
resnet  2048    7    7  512  1  1  0  0  1  1  training=8,16 server=1,2 device=1
keyword    1   40  151   32  5 20  8  8  2  8  device=1
"""

# application, M, K, transposition of A and B (N: as stored, T: transposed), columns N
PRODUCTS = """\
speech    1760   1760 NN  training=16,32,64,128,7000
speech    2048   2048 NN  training=16,32,64,128,7000
speech    2560   2560 NN  training=16,32,64,128,7000
speech    4096   4096 NN  training=16,32,64,128,7000
speech    1760   1760 TN  training=16,32,64,128,7000
speech    2048   2048 TN  training=16,32,64,128,7000
speech    2560   2560 TN  training=16,32,64,128,7000
speech    4096   4096 TN  training=16,32,64,128,7000
speech    1760   1760 NT  training=7133
speech    2048   2048 NT  training=7133
speech    2560   2560 NT  training=7133
speech    4096   4096 NT  training=7133
speech    5124   1760 NN  training=9124
speech      35   1760 NN  training=8457
speech    5124   2048 NN  training=9124 server=700,1500 device=700
speech      35   2048 NN  training=8457 server=700,1500 device=700
speech    5124   2560 NN  training=9124 server=700,1500
speech      35   2560 NN  training=8457 server=700,1500
speech    5124   4096 NN  training=9124
speech      35   4096 NN  training=8457
speech    5124   1760 TN  training=9124
speech      35   1760 TN  training=8457
speech    5124   2048 TN  training=9124
speech      35   2048 TN  training=8457
speech    5124   2560 TN  training=9124
speech      35   2560 TN  training=8457
speech    5124   4096 TN  training=9124
speech      35   4096 TN  training=8457
speech    7680   2560 NN  training=16,32,64,128,24000,48000 server=1,2,4,1500,3000,6000
speech    7680   2560 TN  training=16,32,64,128,24000,48000
speech    3072   1024 NN  training=16,32,64,128,24000,48000 server=1,2,4,1500,3000,6000 device=1,1500
speech    3072   1024 TN  training=16,32,64,128,24000,48000
speech    3072   1024 NT  training=7435
speech    7680   2560 NT  training=5481
language   512 500000 NN  training=8,16 server=1,2,4
language  1024 500000 NN  training=8,16 server=1,2,4
language   512 500000 TN  training=8,16
language  1024 500000 TN  training=8,16
speaker   1024    512 NN  training=16,32,700 server=1,2,4,700
speaker   1024    512 TN  training=700
speech    6144   2048 NN  training=16,32,24000,48000 server=1,2,4,1500,3000,6000
speech    4608   1536 NN  training=16,32,24000,48000 server=1,2,4,1500,3000,6000
speech    8448   2816 NN  training=16,32,24000,48000 server=1,2,4,1500,3000,6000
speech    6144   2048 TN  training=16,32,24000,48000
speech    4608   1536 TN  training=16,32,24000,48000
speech    8448   2816 TN  training=16,32,24000,48000
speech     512   2816 NN  training=24000,48000 server=1500,3000,6000
speech     512   2048 NN  training=24000,48000 server=1500,3000,6000
speech     512   2560 NN  training=24000,48000 server=1500,3000,6000
speech     512   1536 NN  training=24000,48000 server=1500,3000,6000
speech    1024   2816 NN  training=24000,48000 server=1500,3000,6000
speech    1024   2048 NN  training=24000,48000 server=1500,3000,6000
speech    1024   2560 NN  training=24000,48000 server=1500,3000,6000
speech    1024   1536 NN  training=24000,48000 server=1500,3000,6000
speech     512    512 NN  training=16,32 server=1,2,4
speech     512   2816 TN  training=24000,48000
speech     512   2048 TN  training=24000,48000
speech     512   2560 TN  training=24000,48000
speech     512   1536 TN  training=24000,48000
speech    1024   2816 TN  training=24000,48000
speech    1024   2048 TN  training=24000,48000
speech    1024   2560 TN  training=24000,48000
speech    1024   1536 TN  training=24000,48000
speech     512    512 NT  training=16,32
speech    1024    512 NT  training=16,32
keyword     64   1216 NN  device=1
speech     128   1280 NN  device=1500
speech    3072    128 NN  device=1,1500
speech     128   1024 NN  device=1
speech     176   1408 NN  device=1500
speech    4224    176 NN  device=1500
speech     128   1408 NN  device=1
speech    4224    128 NN  device=1
"""
