package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"headgate/pkg/status"
)

const (
	statusPath    = "/api/v1/status"
	fetchTimeout  = 3 * time.Second
	maxStatusSize = 64 << 20 // 50,000 targets
)

// ErrNoAgent means that nothing listens on the address.
var ErrNoAgent = errors.New("no agent listens there")

// FetchStatus asks the agent that listens on addr for its state. addr is
// host:port as in the key listen, where an empty or unspecified host is this
// one, or a URL, which can name https and a user: https://user:password@host:port.
func FetchStatus(ctx context.Context, addr string) (*status.Status, error) {
	base, err := baseURL(addr)
	if err != nil {
		return nil, err
	}
	place := base.Redacted()
	fail := func(err error) (*status.Status, error) {
		return nil, fmt.Errorf("ask %s for its status: %w", place, err)
	}

	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base.JoinPath(statusPath).String(), nil)
	if err != nil {
		return fail(err)
	}
	// No proxy: the agent is near, and a proxy's answer would not be its.
	client := http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(req)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return fail(fmt.Errorf("%w; is headgate running? --listen or HEADGATE_LISTEN names another address", ErrNoAgent))
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fail(fmt.Errorf("no answer within %v: the agent hangs, or gets no CPU; its gates open when the lease ends: %w", fetchTimeout, context.DeadlineExceeded))
	}
	if e := (*url.Error)(nil); errors.As(err, &e) {
		err = e.Err // without the URL, which may hold a password
	}
	if err != nil {
		return fail(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxStatusSize))
	if err != nil {
		return fail(err)
	}
	switch {
	case resp.StatusCode == http.StatusUnauthorized:
		return fail(errors.New("the agent wants a user and a password; give the address as https://user:password@host:port"))
	case resp.StatusCode == http.StatusBadRequest && strings.Contains(string(body), "HTTPS"):
		return fail(errors.New("the agent speaks TLS; give the address as https://host:port"))
	case resp.StatusCode != http.StatusOK:
		return fail(fmt.Errorf("the answer is %s: %.200q", resp.Status, body))
	}
	var s status.Status
	if err := json.Unmarshal(body, &s); err != nil {
		return fail(fmt.Errorf("the answer is not the status of an agent: %w", err))
	}
	return &s, nil
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
