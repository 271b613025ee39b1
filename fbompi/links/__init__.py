"""Links: who answers when. A method sends tasks and collects updates; the link decides the order of arrival."""
