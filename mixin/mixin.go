// Package mixin holds what a monitoring system wants to have of headgate:
// recording rules and alerts for Prometheus, written by hand, since they are
// read and changed by those who run it, and a dashboard for Grafana that is
// generated, since nobody reads its JSON.
package mixin

//go:generate go run ./dashboard -o dashboard.json
