"""Rules for operators of users: registered in one line, and checked before they are believed."""
