package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"syscall"
	"time"

	"headgate/pkg/control"
)

// controlTimeout is how long a request may take: a reload may attach programs to
// many devices.
const controlTimeout = 30 * time.Second

// SetLimit asks the agent behind a socket to set or clear a limit by hand.
func SetLimit(ctx context.Context, socket string, r control.Limit) (*control.Answer, error) {
	return tell(ctx, socket, limitPath, r)
}

// SetModes asks the agent behind a socket to switch modes.
func SetModes(ctx context.Context, socket string, r control.Mode) (*control.Answer, error) {
	return tell(ctx, socket, modePath, r)
}

// SetExempt asks the agent behind a socket to change who is exempt.
func SetExempt(ctx context.Context, socket string, r control.Exempt) (*control.Answer, error) {
	return tell(ctx, socket, exemptPath, r)
}

// Reload asks the agent behind a socket to read its configuration again. The
// error says what keeps that from being in force.
func Reload(ctx context.Context, socket string, r control.Reload) error {
	_, err := tell(ctx, socket, reloadPath, r)
	return err
}

// tell makes a request. What the agent says against it is the whole error.
func tell(ctx context.Context, socket, path string, request any) (*control.Answer, error) {
	body, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://headgate"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	var d net.Dialer
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return d.DialContext(ctx, "unix", socket)
		},
	}}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask the agent on %s: %w", socket, reach(err))
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxStatusSize))
	if err != nil {
		return nil, fmt.Errorf("ask the agent on %s: %w", socket, err)
	}
	if resp.StatusCode != http.StatusOK {
		var f failure
		if err := json.Unmarshal(text, &f); err != nil || f.Error == "" {
			return nil, &AnswerError{Code: resp.StatusCode, Status: resp.Status, Body: string(text)}
		}
		return nil, errors.New(f.Error)
	}
	var answer control.Answer
	if err := json.Unmarshal(text, &answer); err != nil {
		return nil, fmt.Errorf("ask the agent on %s: the answer is not that of an agent: %w", socket, err)
	}
	return &answer, nil
}

// reach says why nobody could be reached, and what can be done about it.
func reach(err error) error {
	const hint = "--socket or HEADGATE_SOCKET names another socket"
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w; is headgate running? %s", ErrNoAgent, hint)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: run as root, or as a member of the group that the key socket_group names", fs.ErrPermission)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no answer within %v: %w", controlTimeout, context.DeadlineExceeded)
	}
	return fmt.Errorf("%w; %s", err, hint)
}
