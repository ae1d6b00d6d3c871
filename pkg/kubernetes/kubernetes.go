// Package kubernetes asks the Kubernetes API which pods are on a node. It speaks
// the list and watch of the API itself: the official client would double the size
// of the binary, for one kind of object of which only the metadata is of interest.
package kubernetes

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// ErrNone means that there is no API to ask.
var ErrNone = errors.New("there is no Kubernetes API: neither is the process in a pod of a cluster, nor is HEADGATE_KUBERNETES_API set")

// accountDir is where a pod finds what it needs to speak with the API.
const accountDir = "/var/run/secrets/kubernetes.io/serviceaccount"

// API is where pods are asked for.
type API struct {
	base      *url.URL
	node      string
	tokenFile string // empty: none
	client    *http.Client
}

// FromEnvironment returns the API that the environment names: in a pod that of
// its cluster, with the service account's token; or the one whose URL is in
// HEADGATE_KUBERNETES_API, without any credential, such as that of a kubectl
// proxy. HEADGATE_NODE is the name of the node. [ErrNone] when there is none.
// lookup is [os.LookupEnv].
func FromEnvironment(lookup func(string) (string, bool)) (*API, error) {
	return fromEnvironment(lookup, accountDir)
}

func fromEnvironment(lookup func(string) (string, bool), dir string) (*API, error) {
	env := func(name string) string { text, _ := lookup(name); return text }
	text, host := env("HEADGATE_KUBERNETES_API"), env("KUBERNETES_SERVICE_HOST")
	transport := http.DefaultTransport.(*http.Transport).Clone()
	// A watch is silent for minutes: a peer that is gone is noticed by this.
	transport.HTTP2 = &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 15 * time.Second}
	transport.ResponseHeaderTimeout = 30 * time.Second
	a := &API{node: env("HEADGATE_NODE"), client: &http.Client{Transport: transport}}
	switch {
	case text != "":
	case host != "":
		text = "https://" + net.JoinHostPort(host, cmp.Or(env("KUBERNETES_SERVICE_PORT"), "443"))
		a.tokenFile = filepath.Join(dir, "token")
		if _, err := os.Stat(a.tokenFile); err != nil {
			return nil, fmt.Errorf("no token for the Kubernetes API, which takes a service account that is mounted (automountServiceAccountToken): %w", err)
		}
		roots, err := rootsOf(filepath.Join(dir, "ca.crt"))
		if err != nil {
			return nil, err
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
		transport.Proxy = nil // it is inside the cluster
	default:
		return nil, ErrNone
	}
	if a.node == "" {
		return nil, errors.New("the variable HEADGATE_NODE does not say which node this is (in a pod: valueFrom fieldRef spec.nodeName)")
	}
	var err error
	if a.base, err = url.Parse(text); err != nil || a.base.Host == "" || !strings.HasPrefix(a.base.Scheme, "http") {
		return nil, fmt.Errorf("HEADGATE_KUBERNETES_API: %.200q is not the URL of an API, such as http://127.0.0.1:8001", text)
	}
	return a, nil
}

func rootsOf(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("certificate of the Kubernetes API: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("certificate of the Kubernetes API: there is none in %s", file)
	}
	return roots, nil
}

// statusError is an answer that is none.
type statusError struct {
	code int
	text string
}

func (e *statusError) Error() string {
	return strings.TrimSuffix(fmt.Sprintf("the Kubernetes API answers %d %s: %s", e.code, http.StatusText(e.code), e.text), ": ")
}

// get asks for pods. as is the form that is asked for, beside plain JSON.
func (a *API) get(ctx context.Context, namespace string, query url.Values, as string) (*http.Response, error) {
	u := a.base.JoinPath("api", "v1", "pods")
	if namespace != "" {
		u = a.base.JoinPath("api", "v1", "namespaces", namespace, "pods")
	}
	query.Set("fieldSelector", "spec.nodeName="+a.node)
	u.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json;as="+as+";v=v1;g=meta.k8s.io,application/json")
	req.Header.Set("User-Agent", "headgate")
	if a.tokenFile != "" { // it is renewed: read each time
		token, err := os.ReadFile(a.tokenFile)
		if err != nil {
			return nil, fmt.Errorf("token for the Kubernetes API: %w", err)
		}
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask the Kubernetes API: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		return nil, &statusError{resp.StatusCode, reasonIn(resp.Body)}
	}
	return resp, nil
}
