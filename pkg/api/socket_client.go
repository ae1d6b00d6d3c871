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
	"net/url"
	"strconv"
	"syscall"
	"time"

	"headgate/pkg/control"
)

const (
	// controlTimeout is how long a request may take.
	controlTimeout = fetchTimeout

	// reloadTimeout is how long a reload may take, which may attach programs to
	// many devices.
	reloadTimeout = 30 * time.Second
)

// beginHeader says until when a request may be begun, in milliseconds since 1970.
// An agent that was stopped finds in its socket what was asked meanwhile: who
// asked has been told that nothing came of it.
const beginHeader = "Headgate-Begin-Before"

// SetLimit asks the agent behind a socket to set or clear a limit by hand.
func SetLimit(ctx context.Context, socket string, r control.Limit) (*control.Answer, error) {
	return tell(ctx, socket, limitPath, r, controlTimeout)
}

// SetModes asks the agent behind a socket to switch modes.
func SetModes(ctx context.Context, socket string, r control.Mode) (*control.Answer, error) {
	return tell(ctx, socket, modePath, r, controlTimeout)
}

// SetExempt asks the agent behind a socket to change who is exempt.
func SetExempt(ctx context.Context, socket string, r control.Exempt) (*control.Answer, error) {
	return tell(ctx, socket, exemptPath, r, controlTimeout)
}

// Reload asks the agent behind a socket to read its configuration again. The
// error says what keeps that from being in force.
func Reload(ctx context.Context, socket string, r control.Reload) error {
	_, err := tell(ctx, socket, reloadPath, r, reloadTimeout)
	return err
}

// tell makes a request. What the agent says against it is the whole error.
func tell(ctx context.Context, socket, path string, request any, timeout time.Duration) (*control.Answer, error) {
	body, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	asker := ctx
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://headgate"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(beginHeader, strconv.FormatInt(time.Now().Add(controlTimeout).UnixMilli(), 10))
	var d net.Dialer
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return d.DialContext(ctx, "unix", socket)
		},
	}}
	resp, err := client.Do(req)
	if e := (*url.Error)(nil); errors.As(err, &e) {
		err = e.Err // the URL is none that anybody knows
	}
	switch {
	case err == nil:
	case asker.Err() != nil: // who asks has ended it
		return nil, fmt.Errorf("ask the agent on %s: %w", socket, err)
	case errors.Is(err, context.DeadlineExceeded):
		return nil, fmt.Errorf("ask the agent on %s: no answer within %v: it hangs, or gets no CPU; it has not begun, or is at it still: %w",
			socket, timeout, context.DeadlineExceeded)
	default:
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
	}
	return fmt.Errorf("%w; %s", err, hint)
}
