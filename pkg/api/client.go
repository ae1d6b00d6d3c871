package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"headgate/pkg/events"
	"headgate/pkg/explain"
	"headgate/pkg/status"
)

const (
	statusPath    = "/api/v1/status"
	targetsPath   = "/api/v1/targets/"
	fetchTimeout  = 3 * time.Second
	maxStatusSize = 64 << 20 // 50,000 targets
)

// ErrNoAgent means that nothing listens on the address.
var ErrNoAgent = errors.New("no agent listens there")

// FetchStatus asks the agent that listens on addr for its state. addr is
// host:port as in the key listen, where an empty or unspecified host is this
// one, or a URL, which can name https and a user: https://user:password@host:port.
func FetchStatus(ctx context.Context, addr string) (*status.Status, error) {
	var s status.Status
	if err := fetch(ctx, addr, "its status", statusPath, &s); err != nil {
		return nil, err
	}
	return &s, nil
}

// ErrNoTarget means that the agent does not protect the port.
var ErrNoTarget = errors.New("not protected")

// FetchExplanation asks the agent that listens on addr (see [FetchStatus]) why
// the limit of a target is what it is. Without a scope it is that of the only
// target with the port. [ErrNoTarget] when there is none.
func FetchExplanation(ctx context.Context, addr, scope string, port uint16) (*explain.Explanation, error) {
	if scope == "" {
		st, err := FetchStatus(ctx, addr)
		if err != nil {
			return nil, err
		}
		if scope, err = onlyScope(st, port); err != nil {
			return nil, err
		}
	}
	var e explain.Explanation
	path := fmt.Sprintf("%s%s/%d/explain", targetsPath, url.PathEscape(scope), port)
	err := fetch(ctx, addr, "an explanation", path, &e)
	if a := (*AnswerError)(nil); errors.As(err, &a) && a.Code == http.StatusNotFound {
		return nil, fmt.Errorf("port %d of the scope %s: %w", port, scope, ErrNoTarget)
	}
	if err != nil {
		return nil, err
	}
	return &e, nil
}

// onlyScope returns the scope of the only target with a port.
func onlyScope(st *status.Status, port uint16) (string, error) {
	var scopes, ports []string
	for _, t := range st.Targets {
		ports = append(ports, strconv.Itoa(int(t.Port)))
		if t.Port == port {
			scopes = append(scopes, t.Scope)
		}
	}
	switch len(scopes) {
	case 1:
		return scopes[0], nil
	case 0:
		return "", fmt.Errorf("port %d: %w; protected are %s", port, ErrNoTarget, strings.Join(ports, ", "))
	}
	return "", fmt.Errorf("port %d is protected in several scopes; --scope names one: %s", port, strings.Join(scopes, ", "))
}

// FollowEvents calls f with each event of the agent that listens on addr (see
// [FetchStatus]): first those that are kept, and with follow those that happen
// until ctx ends, f returns an error or the agent ends.
func FollowEvents(ctx context.Context, addr string, follow bool, f func(events.Event) error) error {
	path := eventsPath
	if !follow {
		path += "?follow=0"
	}
	const what = "its events"
	resp, place, err := get(ctx, addr, what, path)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	for lines := bufio.NewReader(resp.Body); ; {
		line, err := lines.ReadString('\n')
		if data, ok := strings.CutPrefix(line, "data: "); ok && err == nil {
			var e events.Event
			if err := json.Unmarshal([]byte(data), &e); err != nil {
				return fmt.Errorf("ask %s for %s: the answer is not an agent's: %w", place, what, err)
			}
			if err := f(e); err != nil {
				return err
			}
		}
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, io.EOF) && !follow:
			return nil
		case errors.Is(err, io.EOF):
			return fmt.Errorf("ask %s for %s: the agent has ended, or %d others have begun to follow them", place, what, maxStreams)
		default:
			return fmt.Errorf("ask %s for %s: %w", place, what, err)
		}
	}
}

// fetch asks for something that is JSON, within fetchTimeout.
func fetch(ctx context.Context, addr, what, path string, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	resp, place, err := get(ctx, addr, what, path)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxStatusSize))
	if err != nil {
		return fmt.Errorf("ask %s for %s: %w", place, what, err)
	}
	if err := json.Unmarshal(body, answer); err != nil {
		return fmt.Errorf("ask %s for %s: the answer is not that of an agent: %w", place, what, err)
	}
	return nil
}

// get asks an agent for something, and makes an error of what is no success.
// place is how the agent may be called.
func get(ctx context.Context, addr, what, path string) (_ *http.Response, place string, err error) {
	base, err := baseURL(addr)
	if err != nil {
		return nil, "", err
	}
	place = base.Redacted()
	defer func() {
		if err != nil {
			err = fmt.Errorf("ask %s for %s: %w", place, what, err)
		}
	}()
	ref, err := url.Parse(path)
	if err != nil {
		return nil, place, err
	}
	at := base.JoinPath(ref.EscapedPath())
	at.RawQuery = ref.RawQuery
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, place, err
	}
	// No proxy: the agent is near, and a proxy's answer would not be its.
	client := http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true, ResponseHeaderTimeout: fetchTimeout},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(req)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil, place, fmt.Errorf("%w; is headgate running? --listen or HEADGATE_LISTEN names another address", ErrNoAgent)
	}
	if t := (interface{ Timeout() bool })(nil); errors.As(err, &t) && t.Timeout() {
		return nil, place, fmt.Errorf("no answer within %v: the agent hangs, or gets no CPU; its gates open when the lease ends: %w", fetchTimeout, context.DeadlineExceeded)
	}
	if e := (*url.Error)(nil); errors.As(err, &e) {
		err = e.Err // without the URL, which may hold a password
	}
	if err != nil {
		return nil, place, err
	}
	if resp.StatusCode == http.StatusOK {
		return resp, place, nil
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
	switch {
	case err != nil:
		return nil, place, err
	case resp.StatusCode == http.StatusUnauthorized:
		return nil, place, errors.New("the agent wants a user and a password; give the address as https://user:password@host:port")
	case resp.StatusCode == http.StatusBadRequest && strings.Contains(string(body), "HTTPS"):
		return nil, place, errors.New("the agent speaks TLS; give the address as https://host:port")
	}
	return nil, place, &AnswerError{Code: resp.StatusCode, Status: resp.Status, Body: string(body)}
}

// AnswerError is an agent's answer that is no success.
type AnswerError struct {
	Code   int
	Status string
	Body   string
}

func (e *AnswerError) Error() string {
	return fmt.Sprintf("the answer is %s: %.200q", e.Status, e.Body)
}

// baseURL makes a URL of an address.
func baseURL(addr string) (*url.URL, error) {
	if strings.Contains(addr, "://") {
		u, err := url.Parse(addr)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return nil, errors.New("the agent's address is not a URL such as https://host:9464")
		}
		return u, nil
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("the agent's address %q is not host:port: %w", addr, err)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
		if ip != nil && ip.To4() == nil {
			host = "::1"
		}
	}
	return &url.URL{Scheme: "http", Host: net.JoinHostPort(host, port)}, nil
}
