import sys; sys.path.insert(0,'/work/main')
from tests.law.test_law import *
from hypothesis import Phase, Verbosity
import tests.law.test_law as T
def test_once(fast_and_small):
    run_state_machine_as_test(Law, settings=settings(deadline=None,max_examples=int(os.environ.get("N","15")),stateful_step_count=STEPS,suppress_health_check=list(HealthCheck),phases=[Phase.generate],derandomize=False,database=None))
