package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
)

// Session is a connection on which a client says one thing after the other, and
// waits for each answer.
type Session struct {
	net.Conn
	buf    []byte
	answer []byte
}

// Dial connects to a server from an address, or any, and logs in. What takes
// longer than the context has fails.
func Dial(ctx context.Context, from netip.Addr, to netip.AddrPort, login ...Turn) (*Session, error) {
	var d net.Dialer
	if from.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
	}
	conn, err := d.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return nil, err
	}
	s := &Session{Conn: conn, buf: make([]byte, 4096)}
	if deadline, ok := ctx.Deadline(); ok {
		_ = s.SetDeadline(deadline)
	}
	if err := s.Say(login...); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Say goes through turns of a dialogue. After an error the session is of no use.
func (s *Session) Say(turns ...Turn) error {
	for _, t := range turns {
		if _, err := s.Write(t.Send); err != nil {
			return err
		}
		s.answer = s.answer[:0]
		for len(s.answer) < len(t.Begin) || !t.Ends(s.answer) {
			n, err := s.Read(s.buf)
			if s.answer = append(s.answer, s.buf[:n]...); !t.Begins(s.answer) {
				return fmt.Errorf("an answer that begins with %.60q", s.answer)
			}
			if err == io.EOF && len(s.answer) > 0 {
				return io.ErrUnexpectedEOF
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// Answer is what came last. It is good until the next Say.
func (s *Session) Answer() []byte { return s.answer }

// outcomeOf is how a request ended that was said, or tried to be.
func outcomeOf(err error) Outcome {
	var late net.Error
	switch {
	case err == nil:
		return Answered
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, io.EOF):
		return Reset
	case errors.As(err, &late) && late.Timeout():
		return TimedOut
	}
	return Failed
}
