"""Drawing of stand-in data sets: letters, symbols, digits and colour scenes.

Images are drawn from the fonts that matplotlib brings along. A stand-in has the shape
of a public data set (Omniglot, CIFAR-FS, Fashion-MNIST) and needs no download. Each
function takes a character and returns its images:

    from drawnsets.letters import draw_letter

    drawings = draw_letter("Ж")  # uint8 [20, 28, 28], bright strokes on dark

`digits.draw_digit` draws records of a digit, `scenes.draw_scenes` colour pictures of a
letter, and `characters.list_characters` returns the characters of each data set.

Every pixel follows from the fonts, the source files of this package and a fixed seed.
"""
