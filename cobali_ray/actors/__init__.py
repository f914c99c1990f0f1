"""Ray, and only here.

The processes of a server, their threads, what each owns, and how others reach them:

    front end: HAProxy, or Serve's proxy   the HTTP port                                   HTTP
    ingress (`n_ingress` of them)
      event loop                           HTTP requests, where each was sent, sockets     nothing is shared
      intake: 2 for small bodies, 1 more   nothing; reads a vocabulary-only model          awaited calls
      judge                                processes that judge grammars                   awaited calls
    engine
      event loop                           control calls, the door's count, feed's JSON    Serve handle calls
      tick thread                          llama.cpp's context, the scheduler,             its mailbox
                                           connections to ingresses, collector's writes
      wire, one for each ingress that fell messages that wait, or a ZeroMQ socket          a queue, two counts
        behind or is on another machine
      read, images, and compilers          images, their rows; grammars being compiled     calls; mail
      llama.cpp's threads                  nothing of ours                                 OpenMP
    lender, for each worker that Ray       the worker's process                            a tunnel, ZeroMQ
        places, on whatever node
    fork server, of `cobali serve`         imported modules: each worker is a fork of it   a private socket
    span sender, with `otlp_endpoint`      ended spans, in ingress and engine              a bounded queue
"""
