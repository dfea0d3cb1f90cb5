"""A process for test_spool_kill.py: spools a batch every few milliseconds and ships them.

Arguments: spool folder, server URL, token file, epoch. It writes the time of each batch to standard
output once the spool has it, and ships what is left when its standard input is closed.
"""

import sys
import threading
import time
from pathlib import Path
from random import uniform

from flopwatch_agent.shipper import Shipper
from flopwatch_agent.spool import Spool, SpooledBatch
from flopwatch_agent.transport import Connection
from tests.agent.test_spool import batch

folder, server, token, epoch = sys.argv[1:]
spool = Spool(Path(folder), most_bytes=1 << 20)
shipper = Shipper(
    spool,
    Connection(server, Path(token)),
    lambda low, high: uniform(low, high) / 100,  # everything a hundred times as fast
)
shipper.start()
stop = threading.Event()


def wait_for_the_end() -> None:
    sys.stdin.read()
    stop.set()


threading.Thread(target=wait_for_the_end, daemon=True).start()
end = 0
while not stop.is_set():
    end += 10
    spool.put([SpooledBatch(batch(epoch=int(epoch), rows=[(0, end)]), (end - 10, end))])
    shipper.notify()
    print(end, flush=True)
    time.sleep(0.005)
while spool.oldest():
    time.sleep(0.01)
shipper.finish(10.0)
spool.close()
