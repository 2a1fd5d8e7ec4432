"""How a long prompt is cut into steps beside users who are reading along."""


def chunks(prompt: int, budget: int, users: int) -> list[int]:
    """Positions of the prompt that each step runs, first to last.

    A step has at most `budget` positions. Each of the users, who came before, has one of them; the prompt has the rest.
    """
    room = budget - users
    return [min(room, prompt - done) for done in range(0, prompt, room)]
