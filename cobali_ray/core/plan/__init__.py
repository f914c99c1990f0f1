"""What the next pass computes: whose tokens, how many, which adapter, which drafts.

How long a chunk of a prompt is:

1. `Scheduler._plan` in `core/scheduler.py`: asks for a pass, again after making room.
2. `Planner.next` in `core/planner.py`: `Planner._sort` says who decodes and whose prompt is computed;
   adapters take turns (`AdapterTurns.next`), and the last class is left out where others would notice
   (`Leftovers.beside`).
3. `Pacer.plan` in `core/plan/pace.py`: `order_prefill`, then how long the tick may take (`Pacer._target`,
   where `best_prefill_s` weighs streams against prompts), then who yields to nobody (`who_is_due`).
4. `Pacer._chunks` in `core/plan/pace.py`: the largest that fit (`TickTimeModel.longest_chunk`), in whole
   steps (`Grain.fit`); without a target as many tokens as the budget has.
5. `cut_chunks` in `core/plan/plan.py`: none goes on beyond an image, a state to be saved or an adapter;
   `lay_out` puts them beside the streams.
6. `Pacer.learn` in `core/plan/pace.py`, by `Scheduler._tick_ended`: how long it took.
"""
