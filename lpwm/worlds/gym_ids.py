"""The worlds' names in gymnasium, without torch.

Gymnasium 1.0 gave up entry points: what is not imported is not known to it. `import lpwm` registers these where
gymnasium is imported already, and so does `gymnasium.make("lpwm:lpwm/PushT-v0")`, which imports lpwm itself.
"""

# world -> its ID, and the raw steps of an episode
IDS = {
    "cube": ("lpwm/Cube-v0", 200),
    "piecewise": ("lpwm/Piecewise-v0", 100),
    "pusht": ("lpwm/PushT-v0", 200),
    "two_room": ("lpwm/TwoRoom-v0", 100),
    "wall": ("lpwm/Wall-v0", 50),
}


def register_worlds() -> None:
    """Tell gymnasium about the worlds; doing it twice is harmless."""
    from gymnasium.envs.registration import register, registry

    for name, (env_id, episode) in IDS.items():
        if env_id not in registry:
            register(
                id=env_id,
                entry_point="lpwm.worlds.gymnasium:WorldEnv",
                vector_entry_point="lpwm.worlds.gymnasium:WorldVectorEnv",
                max_episode_steps=episode,
                kwargs={"world": name},
            )
