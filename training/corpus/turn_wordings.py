"""How people go on in a conversation: wordings for `turns.py`."""

from __future__ import annotations

from training.corpus.source import lines

MY_NAME = lines("""
    my name is <name>
    I am <name>
    I'm <name>
    (hi|hello|hey), (I am|I'm|my name is|this is) <name>
    (call me|you can call me|people call me) <name>
    <name> is my name
    <name> here
    this is <name>[ speaking]
    (hi|hello), <name> here
    please (remember|note|learn) that my name is <name>
    let me introduce myself: <name>
    they call me <name>
""")
WHAT_NAME = lines("""
    what is my name?
    what's my name?
    (do you|can you|could you) (remember|tell me|say|recall) my name?
    who am I?
    (tell me|say|repeat) my name
    do you (still |)know (who I am|my name|what I am called)?
    what am I called?
    how did I (introduce myself|say I am called)?
    (which|what) name did I (tell|give) you?
    I forgot my name. what is it?
    and what was my name[ again]?
    my name (is|was)[ what][?]
""")
LIKES = lines("""
    my favourite <thing> is <it>
    I (like|love|prefer) <it>, it is my favourite <thing>
    (remember|note) this: my favourite <thing> is <it>
    of all <thing>s I (like|love) <it> (most|best)
    <it> is my favourite <thing>
    my best <thing> is <it>
    the <thing> I (like|love) (most|best) is <it>
    (just so you know|by the way), my favourite <thing> is <it>
""")
WHAT_LIKES = lines("""
    what is my favourite <thing>?
    what's my favourite <thing>?
    (which|what) <thing> do I (like|love) (most|best)?
    (do|can) you (remember|recall|know|tell me) my favourite <thing>?
    (tell me|say|repeat) my favourite <thing>
    which <thing> is my favourite?
    what did I say my favourite <thing> is?
    my favourite <thing> (is|was)[ what][?]
""")
AFTER = lines("""
    and the one after that?
    and after that?
    and the next[ one]?
    what comes (next|after that)?
    (which|what) one comes after that?
    the next one[, please][?]
    and then?
    go on
    (one|one step) further[, please][?]
    the one after[ that]?
    next[?]
    and what follows[ that]?
    which is next?
""")
BEFORE = lines("""
    and the one before that?
    and before that?
    and the previous one?
    what comes before that?
    (which|what) one comes before that?
    the one before[ that]?
    (one|one step) back[, please][?]
    and what was before that?
    the previous one[, please][?]
""")
ASK_DAY = lines("""
    what day comes after <it>?
    which day follows <it>?
    (tell|give) me the day after <it>
    the day after <it>?
""")
ASK_MONTH = lines("""
    what month comes after <it>?
    which month follows <it>?
    (tell|give) me the month after <it>
    the month after <it>?
""")
ASK_PLANET = lines("""
    what planet comes after <it>?
    which planet follows <it>?
    (tell|give) me the planet after <it>
    the planet after <it>?
""")
ASK_NUMBER = lines("""
    what number comes after <it>?
    which number follows <it>?
    (tell|give) me the number after <it>
    the number after <it>?
""")
ASK_CAPITAL = lines("""
    what is the capital of <it>?
    (tell|give) me the capital of <it>
    which city is the capital of <it>?
    capital of <it>?
""")
AND_OF = lines("""
    and of <it>?
    and <it>?
    what about <it>?
    and (the one|that) of <it>?
    how about <it>?
    the same for <it>[, please]
    now <it>
    and for <it>?
    and what is it for <it>?
    <it>?
    also <it>[, please]
""")
ASK_SUM = lines("""
    what is <a> plus <b>?
    <a> + <b>
    add <a> and <b>
    how much is <a> and <b>?
""")
AND_PLUS = lines("""
    and plus <c>?
    (now |and |)add <c>[ to that| to it]
    plus <c>[?]
    and <c> more?
    and if I add <c>[ to it]?
    (what is that|that|and that) plus <c>?
    add another <c>
    what if you add <c>?
    and with <c> more?
""")
AND_MINUS = lines("""
    and minus <c>?
    (now |and |)(subtract|take away) <c>[ from that| from it]
    minus <c>[?]
    and <c> less?
    and if I (subtract|take away) <c>?
    (what is that|that|and that) minus <c>?
    take <c> away[ again]
    and without <c>?
""")
ASK_SPELL = lines("""
    spell <it>
    how do you spell <it>?
    spell the word <it>
    can you spell <it>?
""")
NOW_BACK = lines("""
    and backwards?
    now backwards
    (and |now |)in reverse[, please][?]
    the same backwards[, please]
    (can you|could you) do (it|that) backwards?
    and from back to front?
    reverse it
    now (turn it around|the other way round)
    and in reverse order?
""")
NOW_UPPER = lines("""
    and in upper case?
    now in upper case
    (and |now |)in capitals[, please][?]
    (and |now |)(write|put) it in (capital letters|upper case|capitals)
    the same word in (capitals|upper case|capital letters)[, please]
    make it upper case
    and (all in|with) capital letters?
    uppercase[, please]
""")
ASK_OPPOSITE = lines("""
    what is the opposite of <it>?
    opposite of <it>?
    (tell|give) me the opposite of <it>
    the opposite of <it>?
""")
ASK_WHAT = lines("""
    what is <it>?
    explain <it>
    what does <it> mean?
    tell me about <it>
""")
AGAIN = lines("""
    (say|repeat) that again
    (again|once more)[, please]
    (can|could) you (say|repeat) that[ again]?
    repeat your (last |)answer
    I did not (hear|get|catch|read) that
    what did you (just |)say?
    pardon?
    come again?
    say it (one more time|once more)
    sorry, what was that?
""")
