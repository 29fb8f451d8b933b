"""Graph -> native step: schedule and plan (what runs when and lies where), emit (readable Python), build (objects)."""
