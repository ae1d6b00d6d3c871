// Package netfilter keeps the one rule that headgate has in the packet filter:
// packets that the programs have marked wait in a queue for their verdict.
//
// The kernel drops, without a word, every packet in every queue of a network
// namespace when any hook in it is unregistered. So the rule is made when it is
// missing, repaired without touching its hook, and taken away only at the very
// end.
package netfilter

import (
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"

	"headgate/pkg/scope"
)

// Names in the ruleset, as in `nft list chain inet headgate hold`.
const (
	tableName = "headgate"
	chainName = "hold"
)

var (
	// ErrMissing means that the rule is not there, or not as it should be.
	ErrMissing = errors.New("headgate's rule is not in the packet filter")

	// ErrUnsupported means that the kernel can queue packets neither by
	// nftables' own means nor by those of iptables.
	ErrUnsupported = errors.New("this kernel cannot hold packets: it has neither nft_queue nor nft_compat with xt_NFQUEUE")

	// ErrHeld means that the rule cannot be repaired while packets are held.
	ErrHeld = errors.New("packets are held")
)

// Rule is the rule of one network namespace.
type Rule struct {
	Netns *scope.Netns

	// Mark is the bits of the packet mark that a packet to be held has set,
	// in prerouting, before anything else of the packet filter sees it.
	Mark uint32

	// Queue is the number of the queue. Where nobody reads from it packets
	// pass as if there were no rule.
	Queue uint16
}

// comment is what tells that a rule is ours, and which.
func (r Rule) comment() string {
	return fmt.Sprintf("headgate: mark %#x waits in queue %d", r.Mark, r.Queue)
}

// Ensure makes the rule unless it is there, and says whether it had to. When
// it fails it has changed nothing. [ErrUnsupported], [ErrHeld].
func (r Rule) Ensure() (made bool, err error) {
	if r.Mark == 0 {
		return false, errors.New("packet filter: a mark without a bit holds everything")
	}
	err = r.Check()
	if err == nil || !errors.Is(err, ErrMissing) {
		return false, err
	}
	// Each attempt is one transaction: all of it, or nothing.
	for _, queue := range []expr.Any{r.ownQueue(), r.compatQueue()} {
		err = r.install(queue)
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EOPNOTSUPP) {
			break
		}
		err = fmt.Errorf("%w (%w)", ErrUnsupported, err)
	}
	return err == nil, err
}

// ownQueue is nftables' expression, compatQueue that of iptables, which some
// kernels are built with alone.
func (r Rule) ownQueue() expr.Any {
	return &expr.Queue{Num: r.Queue, Total: 1, Flag: expr.QueueFlagBypass}
}

func (r Rule) compatQueue() expr.Any {
	// struct xt_NFQ_info_v3: number, how many from there, flags.
	const bypass = 1
	info := binaryutil.NativeEndian.PutUint16(r.Queue)
	info = append(info, binaryutil.NativeEndian.PutUint16(1)...)
	info = append(info, binaryutil.NativeEndian.PutUint16(bypass)...)
	unknown := xt.Unknown(info)
	return &expr.Target{Name: "NFQUEUE", Rev: 3, Info: &unknown}
}

func (r Rule) install(queue expr.Any) error {
	c, err := connect(r.Netns)
	if err != nil {
		return fmt.Errorf("packet filter: %w", err)
	}
	chain := wanted()
	existing, err := find(c)
	if err != nil {
		return err
	}
	if existing != nil && !sameHook(existing, chain) {
		// It takes a hook away, and with it all that is held.
		held, err := r.held()
		if err != nil {
			return err
		}
		if held > 0 {
			return fmt.Errorf("repair chain %s in the packet filter: %w: %d", chainName, ErrHeld, held)
		}
		c.FlushChain(existing)
		c.DelChain(existing)
	}
	c.AddTable(chain.Table)
	c.AddChain(chain)
	c.FlushChain(chain)
	mask := binaryutil.NativeEndian.PutUint32(r.Mark)
	c.AddRule(&nftables.Rule{
		Table: chain.Table,
		Chain: chain,
		Exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mask, Xor: make([]byte, 4)},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: mask},
			queue,
		},
		UserData: userdata.AppendString(nil, userdata.TypeComment, r.comment()),
	})
	if err := c.Flush(); err != nil {
		return fmt.Errorf("make the rule in the packet filter: %w", err)
	}
	return nil
}

// Check returns nil when the rule is as Ensure makes it, and otherwise an
// error that wraps [ErrMissing] and says what is wrong.
func (r Rule) Check() error {
	c, err := connect(r.Netns)
	if err != nil {
		return fmt.Errorf("packet filter: %w", err)
	}
	chain, err := find(c)
	if err != nil {
		return err
	}
	if chain == nil {
		return fmt.Errorf("%w: no chain inet %s %s", ErrMissing, tableName, chainName)
	}
	if !sameHook(chain, wanted()) {
		return fmt.Errorf("%w: chain inet %s %s has another hook", ErrMissing, tableName, chainName)
	}
	if chain.Policy == nil || *chain.Policy != *wanted().Policy {
		return fmt.Errorf("%w: chain inet %s %s has another policy", ErrMissing, tableName, chainName)
	}
	rules, err := c.GetRules(chain.Table, chain)
	if err != nil {
		return fmt.Errorf("read the packet filter: %w", err)
	}
	if len(rules) != 1 {
		return fmt.Errorf("%w: chain inet %s %s has %d rules", ErrMissing, tableName, chainName, len(rules))
	}
	if comment, _ := userdata.GetString(rules[0].UserData, userdata.TypeComment); comment != r.comment() {
		return fmt.Errorf("%w: the rule in its place is %q", ErrMissing, comment)
	}
	return nil
}

// Remove takes headgate's table out of the packet filter of a namespace. It is
// no error when there is none. What is held at that moment, by anybody, is
// lost, and comes again when its client sends it again.
func Remove(ns *scope.Netns) error {
	c, err := connect(ns)
	if err != nil {
		return fmt.Errorf("packet filter: %w", err)
	}
	tables, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	if unsupported(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the packet filter: %w", err)
	}
	for _, t := range tables {
		if t.Name != tableName {
			continue
		}
		c.DelTable(t)
		if err := c.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove table inet %s from the packet filter: %w", tableName, err)
		}
	}
	return nil
}

// connect speaks with the packet filter of a namespace.
func connect(ns *scope.Netns) (*nftables.Conn, error) {
	if ns.Own() { // to enter it all the same would take CAP_SYS_ADMIN
		return nftables.New()
	}
	return nftables.New(nftables.WithNetNSFd(ns.Fd()))
}

func wanted() *nftables.Chain {
	accept := nftables.ChainPolicyAccept
	return &nftables.Chain{
		Table:    &nftables.Table{Family: nftables.TableFamilyINet, Name: tableName},
		Name:     chainName,
		Type:     nftables.ChainTypeFilter,
		Hooknum:  nftables.ChainHookPrerouting,
		Priority: nftables.ChainPriorityRaw,
		Policy:   &accept,
	}
}

// find returns headgate's chain, nil when there is none.
func find(c *nftables.Conn) (*nftables.Chain, error) {
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if unsupported(err) {
		return nil, fmt.Errorf("%w: no nftables: %w", ErrUnsupported, err)
	}
	if err != nil {
		return nil, fmt.Errorf("read the packet filter: %w", err)
	}
	for _, chain := range chains {
		if chain.Table.Name == tableName && chain.Name == chainName {
			return chain, nil
		}
	}
	return nil, nil
}

func sameHook(a, b *nftables.Chain) bool {
	return a.Type == b.Type &&
		a.Hooknum != nil && *a.Hooknum == *b.Hooknum &&
		a.Priority != nil && *a.Priority == *b.Priority
}

// unsupported says whether the kernel has no nftables at all.
func unsupported(err error) bool {
	return errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)
}
