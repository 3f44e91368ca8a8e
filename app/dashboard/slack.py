"""The forms about Slack channels on the page of alert rules."""

from app.access.auth import ADMINS
from app.dashboard import alerts
from app.dashboard.pages import View, action
from app.webhooks import slack
from app.webhooks.models import SaveSlackChannel


@action("/alerts/slack", roles=ADMINS, back=alerts.show, step_up=True)
async def save(view: View) -> str:
    """Add a Slack channel, or replace the URL of the channel with this name. No page shows the URL again."""
    await slack.save(view.service, view.principal, view.body(SaveSlackChannel))
    return view.url("alerts", done="slack-saved")


@action("/alerts/slack/{channel_id}/remove", roles=ADMINS, back=alerts.show, step_up=True)
async def remove(view: View) -> str:
    """Remove a Slack channel."""
    await slack.remove(view.service, view.principal, view.path("channel_id"))
    return view.url("alerts", done="slack-removed")


@action("/alerts/slack/{channel_id}/test", roles=ADMINS, back=alerts.show)
async def test(view: View) -> str:
    """Send a test message to a Slack channel."""
    await slack.test(view.service, view.principal, view.path("channel_id"))
    return view.url("alerts", done="slack-tested")
